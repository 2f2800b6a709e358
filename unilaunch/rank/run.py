"""Run one rank: the steps from the launcher's environment to the result, in order."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import gethostname
from typing import TYPE_CHECKING, cast

from unilaunch import launchers
from unilaunch.errors import PeerLostError, RefusedTogetherError, UnilaunchError, say
from unilaunch.interfaces.agreement import together
from unilaunch.interfaces.backend import Peers
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.direct import IDENTITY
from unilaunch.launchers.launcher import SHORTEST_LIFE
from unilaunch.machine.limits import allow_files
from unilaunch.monitor import messages
from unilaunch.rank import program
from unilaunch.rank.identity import Rank, agree_on_rank, complete
from unilaunch.rank.status import MEETING_HOSTS, Status
from unilaunch.rank.work import do_task
from unilaunch.record import replace
from unilaunch.rendezvous import mpi
from unilaunch.rendezvous.alone import Alone
from unilaunch.rendezvous.rendezvous import join, join_mpi
from unilaunch.spec.redaction import redact_words
from unilaunch.spec.task import Task
from unilaunch.spec.variables import COPIES, KEY, MONITOR, SPEC, WINDOWS, attempt_of, describe_services
from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec

#: Seconds to wait for the other ranks if this rank could not read its options.
PATIENCE = 60.0
#: Open files for each other rank: for the connections to rank 0, and for a model's data path.
_FILES = 4


def run(read_task: "Callable[[], Task[RunSpec]]", environ: Mapping[str, str], status: Status) -> int:
    """Run the rank that the launcher assigned, or the only rank without a launcher; return the exit code.

    Args:
        read_task: Reads and checks the task; raises UnilaunchError.
        environ: The process's environment.
        status: This rank's status channel.
    """
    _forget_launch()
    _end_at_once_when_interrupted()
    peers: Peers = Alone()
    number, stays_until = 0, time.monotonic() + SHORTEST_LIFE
    try:
        if launchers.is_helper(environ):
            return _schedule(read_task())
        found = launchers.detect(environ)
        number = found.rank
        if found.name == "direct":  # no mpirun has started this rank
            stays_until = 0.0
            os.environ[COPIES] = f"{os.getppid()} {found.size}"  # noqa: TID251  (for `launchers.refuse_copies`)
        if number == 0 and MONITOR not in environ and (line := describe_services(environ)):
            say(line)
        allow_files(_FILES * (found.size or 1))
        status.send(messages.Named(number, gethostname(), attempt_of(environ)))
        status.note(phase="meeting the other ranks" if found.one_host else MEETING_HOSTS)
        task, refused = _read(read_task)
        chosen = mpi.variables(found, environ) if found.mpi and found.size != 1 else {}
        os.environ.update(chosen)  # noqa: TID251  (written once, before MPI reads it)
        peers = _connect(found, environ, task, refused)
        found = complete(found, peers)
        with together(peers):
            task = _checked(task, refused, found)
        rank = agree_on_rank(task, found, peers, environ, status)
        if rank.task.model:
            peers = join_mpi(found, peers)
            rank = replace(rank, peers=peers)
        _record_start(rank, found, chosen)
        return do_task(rank)
    except UnilaunchError as error:
        _send_refusal(error, number, peers, status)
        return _leave_late(error.exit_code, stays_until)
    except Exception as error:  # noqa: BLE001  (a plug-in may raise any exception)
        traceback.print_exc()
        status.fail(error, 1)
        return _leave_late(1, stays_until)
    finally:
        peers.leave()


def _record_start(rank: Rank, found: LauncherInfo, variables: Mapping[str, str]) -> None:
    rank.output.record(
        phase="start", launcher=found.launcher, evidence=found.evidence, variables=variables,
        command=rank.task.command or redact_words(sys.orig_argv),
        versions={"unilaunch": __version__, "python": sys.version.partition(" ")[0]},
    )  # fmt: skip


def _forget_launch() -> None:
    """Remove the variables of this job from the environment: a program may start another job."""
    for variable in (MONITOR, SPEC, KEY, WINDOWS, *IDENTITY):
        os.environ.pop(variable, None)  # noqa: TID251


def _end_at_once_when_interrupted() -> None:
    """Let SIGINT end this rank, even inside MPI; before a program runs, Python's handler is restored."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read(read_task: "Callable[[], Task[RunSpec]]") -> "tuple[Task[RunSpec] | None, UnilaunchError | None]":
    """Return the task, or the error why this rank has none: it meets the other ranks all the same, and tells them."""
    try:
        return read_task(), None
    except UnilaunchError as error:
        return None, error


def _connect(
    found: LauncherInfo, environ: Mapping[str, str], task: "Task[RunSpec] | None", refused: UnilaunchError | None
) -> Peers:
    """Connect to the other ranks, even to tell them why this rank must stop; if that fails, raise that reason."""
    try:
        insecure = bool(task and task.spec.insecure_rendezvous)
        # A program that uses MPI may find it initialised; then it must have every thread level.
        level = "serialized" if task and task.model else "multiple"
        patience = task.spec.timeout if task else PATIENCE
        return join(found, environ, patience, insecure=insecure, thread_level=level)
    except UnilaunchError as error:
        raise refused or error from None


def _checked(task: "Task[RunSpec] | None", refused: UnilaunchError | None, found: LauncherInfo) -> "Task[RunSpec]":
    """Return the task; raise the error why this rank has none, or why it does not fit the ranks."""
    if task is None:
        raise cast("UnilaunchError", refused)
    task.check(found.size)
    if task.model and found.mpi and found.size != 1:
        mpi.check(found)
    return task


def _schedule(task: "Task[RunSpec]") -> int:
    """Run msrun's scheduler: a program's `init()` is the scheduler; the ranks of a model need none."""
    if task.model is None:
        program.run_program(task.target, task.spec.args)
    return 0


def _send_refusal(error: UnilaunchError, number: int, peers: Peers, status: Status) -> None:
    """Show why this rank ends before its work begins; if all ranks refuse for the same reason, only rank 0 shows it."""
    together = isinstance(error, RefusedTogetherError)
    if number == 0 or not together:
        say(error)
    if together:
        with suppress(PeerLostError):  # until rank 0 has said why: it is ended when another rank fails or exits
            peers.share(None)
    status.fail(error, error.exit_code, together=together)


def _leave_late(exit_code: int, stays_until: float) -> int:
    time.sleep(max(0.0, stays_until - time.monotonic()))
    return exit_code
