"""A check of the form of an option's text."""

import re

from pydantic import AfterValidator


def written_as(pattern: str, what: str) -> AfterValidator:
    """Return a check that the whole text matches a regular expression; *what* says in words which text does."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(what)
        return text

    return AfterValidator(check)
