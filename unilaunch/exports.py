"""The variables of `-x NAME[=VALUE]`, and the check whether a value is secret."""

import re
from collections.abc import Iterable

_WORDS = "TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|JWT"
#: A variable whose name contains one of the words (FLUX_API_KEY=..., --mpi-arg=MY_TOKEN=...), or an option whose name
#: ends with one (--api-key=...; but not --keyframes=3), each with its value.
_SECRET = re.compile(
    rf"((?:^|=|\s)(?!-)[^\s=]*(?:{_WORDS})[^\s=]*|^-(?:[\w-]*[-_])?(?:{_WORDS}))=.*", re.IGNORECASE | re.DOTALL
)


def secrets(x: Iterable[str]) -> list[str]:
    """Return the variables with a given value whose name shows that it is a secret."""
    return [text.partition("=")[0] for text in x if _SECRET.match(text)]


def without_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """Return the same words with only the names of secrets, to be shown and written to files."""
    return tuple(_SECRET.sub(r"\1", word) for word in words)
