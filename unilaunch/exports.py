"""The variables of `-x NAME[=VALUE]`, and which values are not to be seen."""

import re
from collections.abc import Iterable, Iterator

_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


def secrets(x: Iterable[str]) -> list[str]:
    """Return the variables whose value is given and, as their name says, a secret."""
    return [name for name, equals, _ in _split(x) if equals and _SECRET.search(name)]


def without_secrets(x: Iterable[str]) -> tuple[str, ...]:
    """Return the same, secrets by their names alone: what is shown, and what stands in files."""
    hidden = set(secrets(x))
    return tuple(name if name in hidden else name + equals + value for name, equals, value in _split(x))


def _split(x: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    return (text.partition("=") for text in x)
