"""An attempt that was started: the process of an mpirun, or an agent of a direct start."""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import E2BIG
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import IO, Self

from unilaunch.errors import LauncherError, MonitorError
from unilaunch.overriding import override


class Started(ABC):
    """An attempt that was started.

    Attributes:
        stdout: What the ranks write, to be shown; None if the attempt writes to the console itself.
        stderr: The same for standard error.
        returncode: The exit code, once the attempt has ended; -N for signal N.
    """

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None
    returncode: int | None = None

    @abstractmethod
    def poll(self) -> int | None:
        """Return the exit code; None while the attempt runs."""

    @abstractmethod
    def end_descriptor(self) -> int:
        """Return a new descriptor that can be read once the attempt has ended; -1 if there is none."""

    @abstractmethod
    def terminate(self) -> None:
        """Ask the attempt to end."""

    @abstractmethod
    def kill(self) -> None:
        """End the attempt and its ranks at once."""

    def has_ranks(self) -> bool:
        """Whether there are ranks on this host; True if that is unknown."""
        return True

    def forget_hosts(self) -> None:  # noqa: B027  (an agent waits for no other host)
        """End what still waits for a lost host."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the files; kill the attempt if the block failed: the job would run on, and no process would watch it.

        Raises:
            MonitorError: The block has raised an exception.
        """
        if error:
            with suppress(ProcessLookupError):
                self.kill()
        for file in (self.stdout, self.stderr):
            if file:
                file.close()
        if isinstance(error, Exception):
            where = extract_tb(trace)[-1]
            raise MonitorError(
                f"launch failed and has ended the job: {error!r} in {Path(where.filename).name}, line {where.lineno}: "
                "please report this line"
            ) from error


class StartedMpirun(Started):
    """An mpirun, in a session of its own.

    Args:
        line: The command line.
        environ: The environment.
        shown: Whether `launch` shows the output.

    Raises:
        LauncherError: The program cannot be started.
    """

    def __init__(self, line: Sequence[str], environ: Mapping[str, str], *, shown: bool) -> None:
        try:
            self._process = subprocess.Popen(
                line,
                bufsize=0,
                env=environ,
                start_new_session=True,
                stdin=subprocess.DEVNULL,  # the agent of rank 0 gets the input from the monitor
                stdout=subprocess.PIPE if shown else None,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            why = f"{error.strerror}: give large arguments in a file" if error.errno == E2BIG else error.strerror
            raise LauncherError(f"{line[0]}: cannot be started: {why}") from None
        self.stdout, self.stderr = self._process.stdout, self._process.stderr

    @override
    def poll(self) -> int | None:
        self.returncode = self._process.poll()
        return self.returncode

    @override
    def end_descriptor(self) -> int:
        with suppress(OSError, AttributeError):  # no pidfd before Linux 5.3
            return os.pidfd_open(self._process.pid)
        return -1

    @override
    def terminate(self) -> None:
        self._process.terminate()

    @override
    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    @override
    def has_ranks(self) -> bool:
        pid = self._process.pid
        try:
            return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").strip())
        except OSError:
            return True

    @override
    def forget_hosts(self) -> None:
        """Kill the processes that still run in mpirun's session: its ssh to a lost host would wait for minutes."""
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                with suppress(OSError):  # the process has exited
                    if os.getsid(int(path.name)) == self._process.pid:
                        os.kill(int(path.name), signal.SIGKILL)


@contextmanager
def readable_at_end(started: Started) -> Iterator[int]:
    """Yield a descriptor that can be read once the attempt has ended, or -1; close it after the block."""
    descriptor = started.end_descriptor()
    try:
        yield descriptor
    finally:
        if descriptor >= 0:
            os.close(descriptor)
