"""The errors of unilaunch, each with the exit code of the process."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC

#: What a write says that finds no room in its file: a full disk, a quota, or ulimit -f.
NO_ROOM = {ENOSPC, EDQUOT, EFBIG}
#: The exit code of a job that was stopped and can be continued: EX_TEMPFAIL of sysexits.h.
REQUEUE = 75
#: Least similarity (difflib's ratio) of a suggested name, and how many longer names are shown at most.
_NEAR, _SUGGESTED = 0.75, 3


class UnilaunchError(Exception):
    """An error that the user can correct, in one line: what was wrong, where, what was expected, what to do.

    Attributes:
        exit_code: The exit code of the process. 2 means that the input was refused before any work was done.
        final: Whether the job would fail again with the same options.
        names_rank: Whether the message says which rank it is about.
    """

    exit_code = 2
    final = False
    names_rank = False


def one_line(text: str) -> str:
    """Return *text* as one line that cannot control a terminal: control characters are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(message: object) -> None:
    """Write one line for the user to standard error, unless the program has closed it."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"unilaunch: {message}\n")
        sys.stderr.flush()


def say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Write a library's warning as one line, as `warnings.showwarning`: without the line of code that gave it."""
    say(f"warning: {message}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" for the known names that begin with *name* or are similar; "" if there are none.

    Similar names have most letters in the same order, or the same letters.
    """
    from difflib import get_close_matches

    plain = {other.lstrip("-"): other for other in known}
    bare = name.lstrip("-")
    longer = [other for other in sorted(plain) if other.startswith((f"{bare}-", f"{bare}_"))]
    mixed_up = [other for other in plain if sorted(other) == sorted(bare)][:1]
    close = longer[:_SUGGESTED] or get_close_matches(bare, plain, n=1, cutoff=_NEAR) or mixed_up
    return f"; did you mean {' or '.join(plain[other] for other in close)}?" if close else ""


class SpecError(UnilaunchError):
    """An option, a config file or a UNILAUNCH_ variable has a value that is not allowed."""


class EnvironmentMismatchError(UnilaunchError):
    """The launcher's environment is incomplete, contradicts itself, or contradicts MPI."""


class PlacementError(UnilaunchError):
    """A rank has no device of the requested kind."""

    names_rank = True


class PluginError(UnilaunchError):
    """A backend or a model is not installed, or its framework is not."""


class InputError(UnilaunchError):
    """An input file is missing, damaged, or does not fit."""


class LauncherError(UnilaunchError):
    """There is no mpirun, or it cannot start the job."""


class RendezvousError(UnilaunchError):
    """The ranks did not find each other."""

    exit_code = 1


class OutputError(UnilaunchError):
    """The output of the job cannot be written."""

    exit_code = 1


class PeerLostError(UnilaunchError):
    """Another rank exited while this rank was waiting for it."""

    exit_code = 1


class MixedCallsError(UnilaunchError):
    """The ranks have called different collectives, or the same one with arrays of different sizes."""

    exit_code = 1
    final = True
    names_rank = True


class MonitorError(UnilaunchError):
    """`launch` itself has failed while it watched a job, and has ended the job."""

    exit_code = 1


class RefusedTogetherError(UnilaunchError):
    """The error of one rank, which every rank raises."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DivergedError(RefusedTogetherError):
    """A training has diverged: its numbers are not finite. All ranks have the same numbers, so every rank raises it."""

    final = True

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


class StoppedError(RefusedTogetherError):
    """The user or a scheduler has stopped the job. Its state is saved: it can continue. Every rank raises it."""

    final = True

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=REQUEUE)
