"""A direct start: one process for each host imports what all ranks need, and forks an agent for each attempt.

`launch` keeps this process until the job ends, so that a restart need not import again. The process is the guard of its
agents: it has no other work while an agent runs.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from unilaunch.agent.agent import Agent
from unilaunch.agent.channel import fork_rank
from unilaunch.agent.output import HiddenOutput
from unilaunch.agent.preload import preload, preload_likely
from unilaunch.agent.processes import (
    PASSED_ON,
    adopt_orphans,
    children,
    fork,
    hear_signals_again,
    pass_signals_on,
    release_code,
    wait_for,
    wake_at_end_of,
)
from unilaunch.launchers.direct import Share, rank_environment
from unilaunch.machine.devices import bind, split_processors
from unilaunch.machine.limits import allow_files
from unilaunch.rank.interpreter import run_rank_and_end
from unilaunch.rank.status import Status
from unilaunch.spec.mpi_programs import refuse_imports
from unilaunch.spec.variables import NO_WINDOWS

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec
    from unilaunch.spec.task import Task

#: The word on the command line of the guard: every rank imports the framework by itself.
UNSHARED = "--unshared"
#: Open files of each rank in its agent, at most.
_FILES = 16
#: Bytes of a request that are read at once.
_PIECE = 1 << 16
#: Reads and checks the task of ranks with this environment.
ReadTask = Callable[[Mapping[str, str]], "Task[RunSpec]"]
#: Does a rank's work. Arguments: the words of the rank's command line, and the status channel.
BeRank = Callable[[Sequence[str], Status], int]


def serve(words: Sequence[str], read_task: ReadTask, be_rank: BeRank) -> int:
    """Start the attempts that `launch` requests, and exit when it closes the connection; return only in a rank.

    The first message has the ranks' environment: what this process has found differs by variables of the start.

    Args:
        words: The number of the connection's descriptor, the target, and `UNSHARED` if every rank imports by itself.
        read_task: See `ReadTask`.
        be_rank: See `BeRank`.
    """
    adopt_orphans()
    own, launch = os.getpid(), os.getppid()
    connection = socket.socket(fileno=int(words[0]))
    variables = {} if UNSHARED in words else _import_once(connection, words[1], read_task)
    wake_at_end_of(launch)
    while (request := _receive(connection)) and not _is_closed(connection):
        agent = fork("the agent of this host")
        if not agent:
            wake_at_end_of(own)
            connection.close()
            return _start_ranks(request, own, variables, be_rank)
        for descriptor in request["files"]:
            os.close(descriptor)
        _answer(connection, pid=agent)
        release_code()
        _answer(connection, code=wait_for(agent, launch))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    os._exit(0)  # without the interpreter's end, which takes half a second once a framework is imported


def _import_once(connection: socket.socket, target: str, read_task: ReadTask) -> Mapping[str, str]:
    """Import what the ranks need; return the variables that the import has set, or begin again without it."""
    guessed = planned = None
    with suppress(Exception):  # the ranks meet the same error, and show it
        guessed = preload_likely(target, dict(os.environ))  # noqa: TID251  (of this process, which imports)
    if request := _receive(connection):
        os.environ.clear()  # noqa: TID251  (this process imports for ranks that have that environment)
        os.environ.update(request["environ"])  # noqa: TID251
        with suppress(Exception):
            planned = preload(read_task(request["environ"]), request["environ"])
        is_guess_wrong = guessed is not None and planned is None
        if is_guess_wrong or len(list(Path("/proc/self/task").iterdir())) > 1 or children():
            _begin_again(connection)  # a fork would not copy all of the state, or copy what ranks do not need
    return {**(guessed or {}), **(planned or {})}


def _start_ranks(request: Mapping[str, Any], parent: int, variables: Mapping[str, str], be_rank: BeRank) -> int:
    """Be the agent of one attempt: fork the ranks, supervise them, and exit with the job's exit code."""
    for number, descriptor in enumerate(request["files"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    environ, share = request["environ"], Share(**request["share"])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_files(_FILES * share.ranks)
    allowed = os.sched_getaffinity(0)
    bound = split_processors(share.ranks, allowed) if request["bound"] else [allowed] * share.ranks
    agent = Agent(environ, parent)
    replaced = pass_signals_on(agent.note_signal)
    for local_rank, processors in enumerate(bound):
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        is_first = not share.first + local_rank
        pid, channel = fork_rank(request["windows"] if is_first else NO_WINDOWS, own_group=True)
        if not pid:
            hear_signals_again(replaced)
            agent.close_files()
            status = channel.be_rank()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            bind(processors)
            if not is_first:
                _close_input()
            if share.size > 1 and not request["allows_mpi"]:
                refuse_imports()
            os.environ.clear()  # noqa: TID251  (a rank's environment replaces that of the process above)
            os.environ.update(rank_environment(environ, share, local_rank) | dict(variables))  # noqa: TID251
            return run_rank_and_end(partial(be_rank, request["words"]), status)
        agent.add(pid, channel, HiddenOutput(), paced=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)  # not before: a signal must be noted for this rank too
    _close_input()  # the input is rank 0's
    os._exit(agent.run())


def _begin_again(connection: socket.socket) -> NoReturn:
    """Start this process again without the imports; requests that were sent already wait in the connection."""
    os.set_inheritable(connection.fileno(), True)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], UNSHARED])  # noqa: S606  (this process itself)


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Return the next message and its files; empty if `launch` has closed the connection.

    Nothing behind the message is read: it is for the process that may replace this one.
    """
    text, files = bytearray(), list[int]()
    while not text.endswith(b"\n"):
        seen = connection.recv(_PIECE, socket.MSG_PEEK)
        piece, received, _, _ = socket.recv_fds(connection, seen.find(b"\n") + 1 or max(1, len(seen)), 3)
        if not piece:
            return {}
        text += piece
        files += received
    return {**json.loads(text), "files": files}


def _is_closed(connection: socket.socket) -> bool:
    """Return whether `launch` has ended: its last request may still wait in the connection."""
    with suppress(BlockingIOError):
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False


def _answer(connection: socket.socket, **values: int) -> None:
    with suppress(OSError):  # `launch` was killed
        connection.sendall(json.dumps(values).encode() + b"\n")


def _close_input() -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nowhere, 0)
    os.close(nowhere)
