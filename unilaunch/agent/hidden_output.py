"""The console of a launcher that writes the ranks' output to its own files, and does not show it.

mpirun of Open MPI 5 does so with --output-filename. The agents on mpirun's host then write to its console.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unilaunch.errors import UnilaunchError
from unilaunch.launchers import detect, known
from unilaunch.record import Record

_PIDFD_GETFD = 438  # the system call's number, the same on all architectures


class HiddenOutput(Record):
    """The output that a launcher does not show.

    Attributes:
        files: A pattern of the launcher's files with the ranks' output; "" if the launcher shows that output.
        console: The launcher's standard output and standard error; -1 for one that cannot be opened. The object that
            holds this value closes them.
    """

    files: str = ""
    console: Sequence[int] = (-1, -1)


def find_hidden_output(launcher: int, environ: Mapping[str, str]) -> HiddenOutput:
    """Return the output that the launcher hides, and the console on which it would have shown it.

    On hosts where mpirun itself does not run, nothing is found: the launcher's daemon there has no such options.

    Args:
        launcher: Its process number.
        environ: A rank's environment.
    """
    with suppress(UnilaunchError, OSError, KeyError):  # a rank without a launcher has no entry point's name
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
    """Duplicate an open file of another process; -1 if that is not allowed.

    Where the kernel allows it, the two share the file's position, since mpirun may still write to the same file.
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
