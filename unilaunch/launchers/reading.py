"""Read a launcher's numbers from an environment: all of them, or an error."""

from collections.abc import Mapping, Sequence
from typing import Any

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo


def read_numbers(environ: Mapping[str, str], launcher: str, names: Sequence[str]) -> dict[str, int]:
    """Return the numbers of *names*: the rank, the world size and, if they are set, both for this host.

    Raises:
        EnvironmentMismatchError: Some are missing, one is no number, or a rank is not below its size.
    """
    missing = [name for name in names if name not in environ]
    if missing:
        there = [f"{name}={environ[name]}" for name in names if name in environ]
        raise EnvironmentMismatchError(
            f"only some of {launcher}'s variables are set: {', '.join(there) or 'none'}; missing: "
            f"{', '.join(missing)}; start the ranks with it, or unset what an earlier run left in this shell"
        )
    wrong = [f"{name}={environ[name]}" for name in names if not is_number(environ[name])] or [
        f"{rank}={environ[rank]} is not below {size}={environ[size]}"
        for rank, size in zip(names[::2], names[1::2], strict=False)
        if int(environ[rank]) >= int(environ[size])
    ]
    if wrong:
        raise EnvironmentMismatchError(
            f"{launcher}'s environment is not valid: {', '.join(wrong)}; do not set these by hand"
        )
    return {name: int(environ[name]) for name in names}


def is_number(text: str, digits: int = 9) -> bool:
    """Return whether *text* is a number as launchers write it: at most nine digits."""
    return text.isascii() and text.isdecimal() and len(text) <= digits


def evidence(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return those of *names* that are set, with their values."""
    return {name: environ[name] for name in names if name in environ}


def describe(
    environ: Mapping[str, str], title: str, names: Sequence[str], used: Sequence[str] = (), **more: Any
) -> LauncherInfo:
    """Return what the variables *names* say: rank, size and, if they are named too, local rank and local size."""
    rank, size, *local = read_numbers(environ, title, names).values()
    local_rank, local_size = [*local, None, None][:2]
    told: dict[str, Any] = {"launcher": title, "run_id": "", "evidence": evidence(environ, *names, *used)} | more
    return LauncherInfo(rank=rank, size=size, local_rank=local_rank, local_size=local_size, **told)
