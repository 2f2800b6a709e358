"""The variables of `-x NAME[=VALUE]`, and the check whether a value is secret."""

import re
from collections.abc import Iterable, Iterator

_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


def secrets(x: Iterable[str]) -> list[str]:
    """Return the variables with a given value whose name shows that it is a secret."""
    return [name for name, equals, _ in _split(x) if equals and _SECRET.search(name)]


def without_secrets(x: Iterable[str]) -> tuple[str, ...]:
    """Return the same words with only the names of secrets, to be shown and written to files."""
    hidden = set(secrets(x))
    return tuple(name if name in hidden else name + equals + value for name, equals, value in _split(x))


def _split(x: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    return (text.partition("=") for text in x)
