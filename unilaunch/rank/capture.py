"""This rank's standard output and error: kept in its folder and still shown, at the file descriptors' level.

A `tee` for each stream reads what this process, its libraries (glog, NCCL) and its children write. It is a process of
its own, so what was written before a SIGKILL is kept too.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def capture(stdout: Path, stderr: Path, *, shown: bool = True) -> Iterator[None]:
    """Copy this process's output to two files while the block runs; both are complete when it ends.

    Args:
        stdout: File of the standard output.
        stderr: File of the standard error.
        shown: Pass the output on as well.
    """
    copies = [_Copy(1, stdout, shown=shown), _Copy(2, stderr, shown=shown)]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe would make it wait for 8 KiB
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for copy in copies:
            copy.end()


class _Copy:
    """One stream under way through a tee."""

    def __init__(self, descriptor: int, file: Path, *, shown: bool) -> None:
        self.descriptor = descriptor
        self.console = os.dup(descriptor)
        reading, writing = os.pipe()
        quiet = [] if shown else [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        self.tee = os.posix_spawnp(
            "tee",
            ["tee", "-a", "-i", str(file)],  # -i: Ctrl-C ends the rank; its last words still pass
            os.environ,  # noqa: TID251  (tee's own environment, nothing is read)
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_DUP2, self.console, 1),
                (os.POSIX_SPAWN_CLOSE, writing),
                *quiet,
            ],
            setsid=True,  # mpirun 5 signals the rank's process group
        )
        os.close(reading)
        os.dup2(writing, descriptor)
        os.close(writing)

    def end(self) -> None:
        """Give the stream back, and wait for the tee unless a child of this rank still holds the pipe."""
        from time import monotonic, sleep

        os.dup2(self.console, self.descriptor)
        os.close(self.console)
        deadline = monotonic() + 1.0
        while os.waitpid(self.tee, os.WNOHANG) == (0, 0) and monotonic() < deadline:
            sleep(0.001)
