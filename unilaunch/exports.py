"""The variables of `-x NAME[=VALUE]` and the words of a command line, and the check whether a value is secret."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: A field of `spec.json`: true if values of `args` are left out.
LEFT_OUT = "secrets_left_out"
#: A field of `spec.json`: the folder in which the run was started, to which its relative paths are relative.
STARTED_IN = "started_in"
_HIDDEN = "***"
_WORDS = "TOKEN(?!IZ)|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|JWT"
#: A variable whose name contains one of the words (FLUX_API_KEY=..., --mpi-arg=MY_TOKEN=...), or an option whose name
#: ends with one (--api-key=...; but not --keyframes=3), each with its value.
_SECRET = re.compile(
    rf"((?:^|=|\s)(?!-)[^\s=]*(?:{_WORDS})[^\s=]*|^-(?:[\w-]*[-_])?(?:{_WORDS}))=.*", re.IGNORECASE | re.DOTALL
)
_OPTION = re.compile(rf"--?(?:[\w-]*[-_])?(?:{_WORDS})", re.IGNORECASE)  # its value may be the next word


def secrets(x: Iterable[str]) -> list[str]:
    """Return the variables with a given value whose name shows that it is a secret."""
    return [text.partition("=")[0] for text in x if _SECRET.match(text)]


def without_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """Return the same words without the values of secrets, to be shown and written to files."""
    shown: list[str] = []
    is_value = False
    for word in words:
        shown.append(_HIDDEN if is_value and not word.startswith("-") else _SECRET.sub(r"\1", word))
        is_value = bool(_OPTION.fullmatch(word))
    return tuple(shown)


def spec_without_secrets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec for `spec.json`; if values of its `args` are left out, LEFT_OUT says so."""
    args = spec["args"]
    shown = list(without_secrets(args))
    return {**spec, "args": shown, LEFT_OUT: True} if shown != args else dict(spec)
