"""What can be wrong, each with the exit code that the process ends with."""

import sys
from collections.abc import Iterable
from contextlib import suppress

#: What a job exits with that was stopped and can go on: EX_TEMPFAIL of sysexits.h.
REQUEUE = 75
#: How alike a name must be to be suggested, as difflib counts, and how many longer names are shown.
_NEAR, _SUGGESTED = 0.75, 3


class UnilaunchError(Exception):
    """Something that a person can put right, in one line: what was wrong, where, what was expected, what to do.

    Attributes:
        exit_code: What the process exits with. 2 means that the input was refused before anything was done.
        final: The same start would fail again.
    """

    exit_code = 2
    final = False


def one_line(text: str) -> str:
    """Return *text* as one line that does nothing to a terminal: control characters are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(message: object) -> None:
    """Write the one line that the user is to read; a program may have closed its standard error."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"unilaunch: {message}\n")
        sys.stderr.flush()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" for the known names that begin with *name* or are like it; "" if none is.

    Like it are names with most letters in the same order, or with the same letters.
    """
    from difflib import get_close_matches

    plain = {other.lstrip("-"): other for other in known}
    bare = name.lstrip("-")
    longer = [other for other in sorted(plain) if other.startswith((f"{bare}-", f"{bare}_"))]
    mixed_up = [other for other in plain if sorted(other) == sorted(bare)][:1]
    close = longer[:_SUGGESTED] or get_close_matches(bare, plain, n=1, cutoff=_NEAR) or mixed_up
    return f"; did you mean {' or '.join(plain[other] for other in close)}?" if close else ""


class SpecError(UnilaunchError):
    """An option, a config file or a UNILAUNCH_ variable says something that is not allowed."""


class EnvironmentMismatchError(UnilaunchError):
    """The launcher's environment is incomplete, contradicts itself, or is not what MPI says."""


class PlacementError(UnilaunchError):
    """A rank has no device of the kind that was asked for."""


class PluginError(UnilaunchError):
    """A backend or a model is not installed, or its framework is not."""


class InputError(UnilaunchError):
    """An input file is missing, damaged, or does not fit."""


class LauncherError(UnilaunchError):
    """There is no mpirun, or it cannot start what is asked of it."""


class RendezvousError(UnilaunchError):
    """The ranks did not find each other."""

    exit_code = 1


class OutputError(UnilaunchError):
    """What the job was to keep cannot be written."""

    exit_code = 1


class PeerLostError(UnilaunchError):
    """Another rank went away while this one was waiting for it."""

    exit_code = 1


class RefusedTogetherError(UnilaunchError):
    """What one rank refused, as every rank raises it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DivergedError(RefusedTogetherError):
    """A training has diverged: its numbers are not finite. All ranks have the same ones, so every rank raises it."""

    final = True

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


class StoppedError(RefusedTogetherError):
    """The job was stopped, by the user or a scheduler, and its state is kept: it can go on. Every rank raises it."""

    final = True

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=REQUEUE)
