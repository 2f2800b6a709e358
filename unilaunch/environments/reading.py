"""Reading a launcher's numbers out of an environment: all of them or an error, never a guess."""

from collections.abc import Mapping, Sequence

from unilaunch.errors import EnvironmentMismatchError


def read_numbers(environ: Mapping[str, str], launcher: str, names: Sequence[str]) -> dict[str, int]:
    """Return the numbers of *names*, of which the first is the rank and the second the world size.

    Raises:
        EnvironmentMismatchError: Some are missing, one is no number, or the rank is not below the size.
    """
    missing = [name for name in names if name not in environ]
    if missing:
        there = [f"{name}={environ[name]}" for name in names if name in environ]
        raise EnvironmentMismatchError(
            f"half of {launcher}'s environment: {', '.join(there) or 'nothing'} set, {', '.join(missing)} not; "
            "start the ranks with it, or unset what an earlier run left in this shell"
        )
    wrong = [f"{name}={environ[name]}" for name in names if not _is_number(environ[name])]
    rank, size = names[:2]
    if wrong or int(environ[rank]) >= int(environ[size]):
        shown = ", ".join(wrong) or f"{rank}={environ[rank]} is not below {size}={environ[size]}"
        raise EnvironmentMismatchError(f"{launcher}'s environment makes no sense: {shown}; do not set these by hand")
    return {name: int(environ[name]) for name in names}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9  # noqa: PLR2004  (more ranks than anybody has)


def evidence(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return those of *names* that are set, with their values."""
    return {name: environ[name] for name in names if name in environ}
