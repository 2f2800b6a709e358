"""What `launch` has started: an mpirun, or the agent of a direct start with the process that forks it.

The command line starts that process before it imports what plans the job: importing this module is fast.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import E2BIG
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from unilaunch.errors import LauncherError, MonitorError
from unilaunch.overriding import override
from unilaunch.spec.variables import MAX_RESTARTS, MONITOR, RESTARTS, SECRET, SPEC

if TYPE_CHECKING:
    from unilaunch.folder.failure import Failure
    from unilaunch.job.terminal import Console
    from unilaunch.launchers.direct import Share
    from unilaunch.launchers.mpirun import Request

#: Seconds for the process that forks the agents to exit, once its connection is closed.
_PATIENCE = 5.0
#: Variables that matter to no import before that process is told them.
_TOLD = {MONITOR, SPEC, RESTARTS, MAX_RESTARTS}


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

    def early_end(self, begun: Collection[int]) -> "Failure | None":  # noqa: ARG002  (the end of one alone is the job's)
        """Return the failure of an agent that has ended before the monitor has heard of any of its ranks.

        The others would wait for these ranks.

        Args:
            begun: The ranks of which the monitor has heard.
        """
        return None

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
            from traceback import extract_tb

            where = extract_tb(trace)[-1]
            raise MonitorError(
                f"launch failed and has ended the job: {error!r} in {Path(where.filename).name}, line {where.lineno}: "
                "please report this line"
            ) from error


class StartedMpirun(Started):
    """An mpirun, in a session of its own.

    Raises:
        LauncherError: The program cannot be started.
    """

    def __init__(self, line: Sequence[str], environ: Mapping[str, str]) -> None:
        try:
            # Its outputs are pipes that this process reads to the end. Where nobody reads the console any more (`tee`,
            # which Ctrl-C ends too, or `head`), mpirun itself would end the ranks, though they save.
            self._process = subprocess.Popen(
                line,
                bufsize=0,
                env=environ,
                start_new_session=True,
                stdin=subprocess.DEVNULL,  # the agent of rank 0 gets the input from the monitor
                stdout=subprocess.PIPE,
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


class GuardHandle:
    """The guard of a direct start, for `launch`; it forks the agents of all attempts.

    It may be started before the job is planned.

    It imports at once what every rank needs, and the framework that *target* seems to use.

    Args:
        target: What the ranks run; lists of processes show it too.
        environ: The environment of the process.
        folder: Its folder; None for this process's.

    Attributes:
        process: The process.
        connection: The connection to it.

    Raises:
        LauncherError: No process can be started.
    """

    def __init__(self, target: str, environ: Mapping[str, str], folder: Path | None = None) -> None:
        self._environ, self._folder, self._is_told = _fixed(environ), folder, False
        self.connection, other = socket.socketpair()
        line = [sys.executable, "-m", "unilaunch", "guard", str(other.fileno()), target]
        with other:
            try:
                self.process = subprocess.Popen(
                    line, env=self._environ, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True,
                    pass_fds=[other.fileno()],
                )  # fmt: skip
            except OSError as error:
                self.connection.close()
                raise LauncherError(f"{sys.executable}: cannot be started: {error.strerror}") from None

    def serves(self, environ: Mapping[str, str], folder: Path | None) -> bool:
        """Return whether it still runs, and is as one that is started now for ranks with *environ* in *folder*."""
        as_now = (self._environ, self._folder) == (_fixed(environ), folder)
        return self.process.poll() is None and (self._is_told or as_now)

    def tell(self, environ: Mapping[str, str]) -> None:
        """Tell it the environment of the first attempt's ranks: it decides whether they share the import."""
        if not self._is_told:
            self._is_told = True
            with suppress(OSError):  # killed: its end says so
                self.connection.sendall(json.dumps({"environ": dict(environ)}).encode() + b"\n")

    def close(self) -> None:
        """End the process: it has no agent any more, unless `launch` fails."""
        self.connection.close()
        if not self._is_told:
            self.process.kill()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _fixed(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in {*_TOLD, SECRET}}


class DirectAgents:
    """Starts the agents of a job's attempts, all from one process.

    Args:
        target: What the ranks run, for lists of processes.
        allows_mpi: Whether the ranks may import a library that needs MPI.
        guard: A process that was started before the job was planned.

    Attributes:
        exit_code: How the job ends, for other nodes.
        key: The key of the start; None for a random one.
    """

    exit_code = 1
    key: bytes | None = None

    def __init__(self, target: object, *, allows_mpi: bool, guard: GuardHandle | None = None) -> None:
        self._target, self._allows_mpi, self._guard = str(target), allows_mpi, guard

    def start(
        self, request: "Request", environ: Mapping[str, str], console: "Console", share: "Share | None" = None
    ) -> Started:
        """Start an attempt.

        Args:
            request: What to start.
            environ: The environment of the ranks.
            console: The job's console.
            share: The ranks of this host; None if there is no other host.

        Raises:
            LauncherError: No process can be started.
        """
        from unilaunch.launchers.direct import Share

        # `-x PATH=...` and its like, which `Request.started` leaves on the line of an mpirun.
        environ = {**environ, **dict(text.split("=", 1) for text in request.options.export if "=" in text)}
        if self._guard and not self._guard.serves(environ, request.options.cwd):
            self._guard.close()
            self._guard = None
        self._guard = guard = self._guard or GuardHandle(self._target, environ, request.options.cwd)
        guard.tell(environ)
        words = request.program[request.program.index("--") :] if "--" in request.program else ()
        share = share or Share(0, request.nprocs, request.nprocs, f"direct-{os.urandom(8).hex()}")
        message = {
            "environ": environ, "words": words, "allows_mpi": self._allows_mpi, "share": vars(share),
            "windows": console.windows, "bound": request.options.bind_to != "none",
        }  # fmt: skip
        started = StartedAgent(guard)
        data = json.dumps(message).encode() + b"\n"
        with started.lending_files(console) as files, suppress(OSError):  # killed: its end says so
            sent = socket.send_fds(guard.connection, [data], files)
            guard.connection.sendall(data[sent:])
        return started

    def close(self) -> None:
        """End the process."""
        if self._guard:
            self._guard.close()


class StartedAgent(Started):
    """An agent, which runs one attempt."""

    def __init__(self, guard: GuardHandle) -> None:
        self._process, self._connection = guard.process, guard.connection
        self._agent = 0
        self._unread = bytearray()

    @contextmanager
    def lending_files(self, console: "Console") -> Iterator[list[int]]:
        """Yield the agent's input, output and error output; this process keeps the other ends of their pipes.

        Raises:
            LauncherError: They cannot be opened.
        """
        with ExitStack() as lent:
            try:
                files = self._open_files(console, lent)
            except OSError as error:
                raise LauncherError(f"the ranks' output cannot be opened: {error.strerror}: see ulimit -n") from None
            yield files

    def _open_files(self, console: "Console", lent: ExitStack) -> list[int]:
        files = [os.open(os.devnull, os.O_RDONLY) if console.stdin is None else console.stdin, 1, 2]
        if console.stdin is None:
            lent.callback(os.close, files[0])
        if console.shown:
            out, files[1] = os.pipe()
            lent.callback(os.close, files[1])
            self.stdout = open(out, "rb", buffering=0)  # noqa: PTH123, SIM115  (Started closes them)
            error, files[2] = os.pipe()
            lent.callback(os.close, files[2])
            self.stderr = open(error, "rb", buffering=0)  # noqa: PTH123, SIM115
        return files

    @override
    def poll(self) -> int | None:
        """Read what the process above the agent answers."""
        with suppress(BlockingIOError):
            while self.returncode is None:
                try:
                    data = self._connection.recv(4096, socket.MSG_DONTWAIT)
                except ConnectionError:
                    data = b""
                if not data:
                    self.returncode = self._process.wait() or 1
                self._unread += data
                while (end := self._unread.find(b"\n")) >= 0:
                    self._take(json.loads(self._unread[:end]))
                    del self._unread[: end + 1]
        return self.returncode

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._agent = answer.get("pid", self._agent)
        self.returncode = answer.get("code", self.returncode)

    @override
    def end_descriptor(self) -> int:
        return os.dup(self._connection.fileno())

    @override
    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    @override
    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the process above it has not said so yet
                os.kill(self._agent or self._process.pid, number)
