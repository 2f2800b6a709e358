"""The start without an mpirun: one process on this host forks the ranks, and is kept for restarts."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unilaunch.job.guard import Guard
from unilaunch.job.started import Started
from unilaunch.job.terminal import Console
from unilaunch.launchers.direct import Share
from unilaunch.launchers.mpirun import Mpirun, Request
from unilaunch.overriding import override
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.run_spec import RunSpec
from unilaunch.version import __version__

#: The fields of `LaunchSpec` that say how ranks are started. Others may hold secrets, and no rank depends on them.
_OF_THE_START = {"nnodes", "node_rank", "max_restarts", "grace", "cwd", "bind_to"}


@dataclass(frozen=True)
class DirectStart(Mpirun):
    """The start by `launch` itself.

    Attributes:
        mpi: Whether the ranks may import a library that needs MPI: the user has asked for this start.
        fields: What the user has given of `_OF_THE_START`, as JSON.
    """

    mpi: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    @override
    def process(self) -> str:
        return "the agent of this host"

    @override
    def write(self, request: Request) -> list[str]:
        """Return a command line that starts the same job in the same way."""
        export = {"export": list(request.mpi.export)} if request.mpi.export else {}
        return launch_line(request.program, {**self.fields, **export, "launcher": "direct", "nprocs": request.nprocs})


def direct_start(spec: LaunchSpec, *, mpi: bool = False) -> DirectStart:
    """Return the start by this Python of what the user wants; *mpi* as in `DirectStart`."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    fields = spec.model_dump(mode="json", include=_OF_THE_START, exclude_defaults=True)
    return DirectStart(Path(sys.executable), "unilaunch", (major, minor), mpi, fields)


def launch_line(program: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
    """Return the command line of a `launch` that starts ranks.

    Args:
        program: The command line of each rank, with its spec.
        fields: The fields of `LaunchSpec` that this spec does not have.
    """
    at = program.index("--spec") + 1
    # A rank's spec leaves out its own default, and `launch` has another one.
    console = RunSpec.model_fields["console"].default
    whole = json.dumps({"console": console, **json.loads(program[at]), **fields})
    return [*program[:3], "launch", "--spec", whole, *program[at + 1 :]]


class DirectAgents:
    """Starts the agents of a job's attempts, all from one process.

    Args:
        target: What the ranks run, for lists of processes.
        mpi: Whether the ranks may import a library that needs MPI.
        guard: A process that was started before the job was planned.

    Attributes:
        exit_code: How the job ends, for other nodes.
        key: The key of the start; None for a random one.
    """

    exit_code = 1
    key: bytes | None = None

    def __init__(self, target: object, *, mpi: bool, guard: Guard | None = None) -> None:
        self._target, self._mpi, self._guard = str(target), mpi, guard

    def start(
        self, request: Request, environ: Mapping[str, str], console: Console, share: Share | None = None
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
        given = (text.partition("=") for text in request.mpi.export)
        environ = {**environ, **{name: value for name, equals, value in given if equals}}
        if self._guard and not self._guard.serves(environ, request.mpi.cwd):
            self._guard.close()
            self._guard = None
        self._guard = guard = self._guard or Guard(self._target, environ, request.mpi.cwd)
        guard.tell(environ)
        words = request.program[request.program.index("--") :] if "--" in request.program else ()
        share = share or Share(0, request.nprocs, request.nprocs, f"direct-{os.urandom(8).hex()}")
        what = {"environ": environ, "words": words, "mpi": self._mpi, "share": vars(share), "windows": console.windows}
        text = json.dumps({**what, "bound": request.mpi.bind_to != "none"})
        started = StartedAgent(guard)
        data = text.encode() + b"\n"
        with suppress(OSError), started.lending_files(console) as files:  # killed: its end says so
            sent = socket.send_fds(guard.connection, [data], files)
            guard.connection.sendall(data[sent:])
        return started

    def close(self) -> None:
        """End the process."""
        if self._guard:
            self._guard.close()


class StartedAgent(Started):
    """An agent, which runs one attempt.

    Args:
        guard: The process from which it is forked.
    """

    def __init__(self, guard: Guard) -> None:
        self._process, self._connection = guard.process, guard.connection
        self._agent = 0
        self._unread = bytearray()

    @contextmanager
    def lending_files(self, console: Console) -> Iterator[list[int]]:
        """Yield the agent's input, output and error output; this process keeps the other ends of their pipes."""
        with ExitStack() as lent:
            files = [os.open(os.devnull, os.O_RDONLY) if console.stdin is None else console.stdin, 1, 2]
            if console.stdin is None:
                lent.callback(os.close, files[0])
            if console.shown:
                (out, files[1]), (error, files[2]) = os.pipe(), os.pipe()
                for writing in files[1:]:
                    lent.callback(os.close, writing)
                self.stdout, self.stderr = open(out, "rb", buffering=0), open(error, "rb", buffering=0)  # noqa: PTH123, SIM115  (Started closes them)
            yield files

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
            os.kill(self._agent or self._process.pid, number)
