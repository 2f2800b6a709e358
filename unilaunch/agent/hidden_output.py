"""The console of a launcher that writes the ranks' output to files of its own, and shows none of it.

So does mpirun of Open MPI 5 with --output-filename. The agents on its host then write to its console themselves.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unilaunch.errors import UnilaunchError
from unilaunch.launchers import detect, known

_PIDFD_GETFD = 438  # the system call's number, the same on all architectures


@dataclass(frozen=True, slots=True)
class HiddenOutput:
    """What a launcher does not show.

    Attributes:
        files: The launcher's own files of the ranks' output, as a pattern; "" if it shows that output.
        console: The launcher's own standard output and standard error; -1 for one that cannot be opened. Whoever has
            this value closes them.
    """

    files: str = ""
    console: Sequence[int] = (-1, -1)


def find_hidden_output(launcher: int, environ: Mapping[str, str]) -> HiddenOutput:
    """Return what the launcher hides, and where it would have shown it.

    On a host without mpirun itself nothing is found: the launcher's process there is a daemon, which has no options.

    Args:
        launcher: Its process number.
        environ: A rank's environment.
    """
    with suppress(UnilaunchError, OSError, KeyError):  # a rank under no launcher has no entry point's name
        line = _words(Path(f"/proc/{launcher}/cmdline"))
        program = _words(Path("/proc/self/cmdline"))
        while line and program and line[-1] == program[-1]:  # a script may have an option of the same name
            line.pop()
            program.pop()
        if files := known()[detect(environ).name].hidden_output(environ, line):
            return HiddenOutput(files, [_open(launcher, number) for number in (1, 2)])
    return HiddenOutput()


def _words(path: Path) -> list[str]:
    return os.fsdecode(path.read_bytes()).split("\0")[:-1]


def _open(process: int, number: int) -> int:
    """Open an open file of another process; -1 if that is not allowed.

    The file's position is shared where the kernel lets us: mpirun may still write to the same file.
    """
    import ctypes

    with suppress(OSError):
        pidfd = os.pidfd_open(process)
        try:
            if (found := ctypes.CDLL(None).syscall(_PIDFD_GETFD, pidfd, number, 0)) >= 0:
                return int(found)
        finally:
            os.close(pidfd)
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/{process}/fd/{number}", flags)
    return -1
