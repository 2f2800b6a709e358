"""Be one rank: the steps from the launcher's environment to the result, in their order."""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, TypeVar, cast

from unilaunch import environments
from unilaunch.agreement import agree
from unilaunch.backend import Backend, Collectives, Peers, Placement, Rendezvous
from unilaunch.environments import msrun
from unilaunch.errors import EnvironmentMismatchError, PeerLostError, RefusedTogetherError, UnilaunchError
from unilaunch.limits import allow_files
from unilaunch.model import Framework, Model, Session
from unilaunch.monitor import messages
from unilaunch.output.folder import RESULT, SPEC, OutputFolder, Use
from unilaunch.output.log import rank_log
from unilaunch.rank import current, mpi, program
from unilaunch.rank.alone import Alone
from unilaunch.rank.collector import uncollected
from unilaunch.rank.facts import tell_facts
from unilaunch.rank.framework_env import framework_env
from unilaunch.rank.joining import join, join_mpi
from unilaunch.rank.placement import Wish, place
from unilaunch.rank.status import Status
from unilaunch.rank.stops import note_stops
from unilaunch.start_variables import MONITOR, attempt_of
from unilaunch.start_variables import SPEC as SPEC_VARIABLE
from unilaunch.task import Task
from unilaunch.world import Found, World, count_world

if TYPE_CHECKING:
    from unilaunch.json_value import JsonValue
    from unilaunch.monitor.inbox import Listening
    from unilaunch.spec import RunSpec

T = TypeVar("T")

#: mpirun can hang when many ranks end within a few tenths of a second of their start (Open MPI 4 and 5).
SHORTEST_LIFE = 0.5
#: Seconds to wait for the other ranks when this one could not even read how long.
PATIENCE = 60.0
INTERRUPTED = 130
#: Open files for each other rank: of the star around rank 0, and of a model's data path.
_FILES = 4


@dataclass(frozen=True, slots=True)
class _Rank:
    """Who this rank is and what it is to do, once all ranks have agreed."""

    task: "Task[RunSpec]"
    world: World
    placement: Placement
    peers: Peers
    output: OutputFolder
    environ: Mapping[str, str]
    status: Status


def run(read_task: "Callable[[], Task[RunSpec]]", environ: Mapping[str, str], started: float, status: Status) -> int:
    """Be the rank that the launcher assigned, or under no launcher the only one; return the exit code.

    Args:
        read_task: Reads and checks what is to be done; raises UnilaunchError.
        environ: The process's environment.
        started: When this process began to work, in seconds of `time.monotonic`.
        status: This rank's status channel.
    """
    _forget_launch()
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends a rank at once, also inside MPI; a program gets it back
    peers: Peers = Alone()
    number = 0
    try:
        if msrun.is_scheduler(environ):
            return _schedule(read_task())
        found = environments.detect(environ)
        number = found.rank
        allow_files(_FILES * (found.size or 1))
        status.send(messages.Named(number, gethostname(), attempt_of(environ)))
        status.note(phase="meeting the other ranks")
        task, refused = _attempt(read_task)
        chosen = mpi.variables(found, environ) if found.mpi and found.size != 1 else {}
        os.environ.update(chosen)  # noqa: TID251  (written once, before MPI reads it)
        peers = _meet_others(found, environ, task, refused)
        found = _complete(found, peers)
        if task:
            _, refused = _attempt(lambda: _check(task, found))
        agree(peers, refused)
        rank = _agree_on_rank(cast("Task[RunSpec]", task), found, peers, environ, status)
        if rank.task.model:
            peers = join_mpi(found, peers)
            rank = replace(rank, peers=peers)
        rank.output.record(phase="start", launcher=found.launcher, evidence=found.evidence, variables=chosen)
        return _work(rank)
    except RefusedTogetherError as error:
        status.send(messages.Refused())
        if number == 0:
            _say(error)
        return _leave_late(error.exit_code, started)
    except UnilaunchError as error:
        status.fail(error, error.exit_code)
        _say(error)
        return _leave_late(error.exit_code, started)
    finally:
        peers.leave()


def _forget_launch() -> None:
    """Take out of the environment what is not meant for a job that a program may start."""
    for variable in (MONITOR, SPEC_VARIABLE):
        os.environ.pop(variable, None)  # noqa: TID251


def _meet_others(
    found: Found, environ: Mapping[str, str], task: "Task[RunSpec] | None", refused: UnilaunchError | None
) -> Peers:
    """Join the other ranks, if only to tell them why this one cannot go on; where that fails, raise why."""
    try:
        insecure = bool(task and task.spec.insecure_rendezvous)
        # A program that uses MPI itself may find it initialised, but then with every thread level.
        level = "serialized" if task and task.model else "multiple"
        patience = task.spec.timeout if task else PATIENCE
        return join(found, environ, patience, insecure=insecure, thread_level=level)
    except UnilaunchError as error:
        raise refused or error from None


def _check(task: "Task[RunSpec]", found: Found) -> None:
    task.check(found.size)
    if task.model and found.mpi and found.size != 1:
        mpi.check(found)


def _schedule(task: "Task[RunSpec]") -> int:
    """Be msrun's scheduler: a program's `init()` does it; our models' ranks meet without one."""
    if task.model is None:
        program.run_program(task.target, task.spec.args)
    return 0


def _complete(found: Found, peers: Peers) -> Found:
    """Return *found* with what its launcher does not tell: rank 0 names the run, and bare PMIx has no world size."""
    if found.run_id and found.size:
        return found
    names = peers.share(f"{found.launcher}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    return replace(found, run_id=found.run_id or str(names[0]), size=len(names))


def _agree_on_rank(
    task: "Task[RunSpec]", found: Found, peers: Peers, environ: Mapping[str, str], status: Status
) -> _Rank:
    """Return who this rank is, and open its output folder."""
    listening = _listen(found, task.spec.host_timeout) if found.rank == 0 and MONITOR not in environ else None
    facts = tell_facts(task, peers, environ, listening.where if listening else "")
    # torchrun's, msrun's and other starts of the same address have the same name, one after the other or on two hosts.
    found = replace(found, run_id=f"{found.run_id}-{facts[0]['start']}")
    world = count_world(found, [fact["host"] for fact in facts], facts[found.rank]["name"])
    if found.local_size not in {None, world.local_size}:
        raise EnvironmentMismatchError(
            f"{found.launcher} says {found.local_size} ranks on {world.host}, and {world.local_size} ranks named it: "
            "are two hosts called the same?"
        )
    kinds = dict.fromkeys(kind for backend in task.backends for kind in backend.devices)
    wish = Wish(task.spec.device, sorted(kinds, key="cpu".__eq__) or ["cpu"], task.spec.threads)
    placement = _alike(lambda: place(wish, facts))[found.rank]
    # mpirun starts a rank in the home folder of a host that has not the current one.
    own = facts[found.rank]["folder"] == facts[0]["folder"]
    root = task.spec.output_dir if own else Path(facts[0]["folder"], task.spec.output_dir)
    resumes = bool(task.model and task.model.resumes(task.options))
    files = [SPEC, RESULT] if task.model else [SPEC]
    use = Use(task.spec.output_dir, claims=world.local_rank == 0, foreign=not own, files=files, resumes=resumes)
    output = OutputFolder(root, world.rank, world.size, found.run_id, use)
    for step in (output.claim, output.open):  # nobody moves anything before all may
        _, refused = _attempt(step)
        agree(peers, refused)
    status.hand_over(output.lock, messages.HoldLock())
    world = replace(world, device=str(placement))
    output.on_phase = status.note
    if listening:
        status.hand_over(listening.listener.detach(), _monitor(task.spec, world, listening))
    if facts[0]["watch"]:
        status.send(messages.MonitorAt(facts[0]["watch"]))
    shown = "lines" if task.spec.console == "all" and world.size > 1 else "nothing" if world.rank else "all"
    status.send(
        messages.Placed(
            world.host, world.device, found.run_id, str(output.rank_dir), shown, task.spec.abort, task.model is None
        )
    )
    return _Rank(task, world, placement, peers, output, environ, status)


def _monitor(spec: "RunSpec", world: World, listening: "Listening") -> messages.BeMonitor:
    return messages.BeMonitor(
        secret=listening.secret.hex(),
        size=world.size,
        several=world.num_hosts > 1,
        host_timeout=spec.host_timeout,
        lost_patience=3.0,  # Open MPI 4 hangs if its ranks end before it has noticed by itself that a host is lost
        stall_timeout=spec.stall_timeout,
        abort=spec.abort,
    )


def _work(rank: _Rank) -> int:
    """Do the task; show and tell whatever ends it badly."""
    try:
        _do(rank)
    except RefusedTogetherError as error:
        rank.status.fail(error, error.exit_code, together=True)
        if rank.world.rank == 0:
            _say(error)
        else:
            rank.output.append_stderr(f"unilaunch: {error}\n")
        return _ended(rank, error.exit_code)
    except BaseException as error:  # noqa: BLE001  (a rank's last net: SystemExit and Ctrl-C of a program too)
        if rank.task.model is None:
            program.leave_out_launcher(error)
        if exit_code := _explain(error, rank):
            said = isinstance(error, KeyboardInterrupt)
            rank.status.fail(error, exit_code, together=said)
            return _ended(rank, exit_code)
        _wait_for_all(rank)
    return _ended(rank, 0)


def _explain(error: BaseException, rank: _Rank) -> int:
    """Show what ended the task, and return the exit code."""
    match error:
        case UnilaunchError():
            _say(error)
            return error.exit_code
        case SystemExit():
            return program.exit_code(error) or int(rank.task.model is not None)  # a model returns, it does not exit
        case MemoryError() if rank.task.model:
            where = f"rank {rank.world.rank} on {rank.world.host}"
            _say(f"{where}: out of memory: {error}: take more ranks on more hosts, or a smaller model")
        case _:
            traceback.print_exception(error)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _ended(rank: _Rank, exit_code: int) -> int:
    rank.output.record(phase="end", exit_code=exit_code)
    return exit_code


def _do(rank: _Rank) -> None:
    """Set what the framework is to find, then run the model or the program."""
    task, world, placement, output = rank.task, rank.world, rank.placement, rank.output
    rendezvous = _meet(rank)
    chosen = framework_env(task.backends, world, placement, rendezvous, rank.environ, program=task.model is None)
    os.environ.update(chosen)  # noqa: TID251  (written once, before numpy and the framework read it)
    gc.enable()
    _part(task.backends)
    output.record(phase="prepare", host=world.host, device=world.device, threads=placement.threads, variables=chosen)
    if task.model:
        _run_model(rank, task.model, task.backends[0], rendezvous)
    else:
        _run_program(rank, cast("Rendezvous", rendezvous))


def _part(backends: Sequence[Backend]) -> None:
    """Make what was imported for all ranks of this host this rank's own, as its own import would have made it."""
    if "numpy" not in sys.modules:  # nothing was
        return
    sys.modules["numpy"].random.seed()
    told = os.environ["OMP_NUM_THREADS"].partition(",")[0]  # noqa: TID251  (which a library reads at its import)
    threads = int(told) if told.isdecimal() else 1
    if threads > 1:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
    for backend in backends:
        if backend.framework in sys.modules:
            backend.after_fork(threads)


def _run_model(rank: _Rank, model: Model, backend: Backend, rendezvous: Rendezvous | None) -> None:
    """Refuse bad input first, then start the framework, then train."""
    task, world, output = rank.task, rank.world, rank.output
    log = rank_log(task.spec.log_level, world.host, world.rank, output.stderr)
    session = Session(world, rank.placement, rank.peers, output, log, task.spec.seed, rank.status.note)
    prepared = model.prepare(task.options, session)
    if world.rank == 0:
        options = task.options.to_json() if task.options else {}
        output.write_spec(task.spec.to_json() | {"options": options})
    output.record(phase="framework import")
    with uncollected():
        backend.start(world, rank.placement)
    try:
        output.record(phase="init")
        framework = Framework(backend, _collectives(rank, backend, rendezvous))
        if model.stops_patiently:
            session = replace(session, stop_asked=note_stops(rank.status))
        result = model.run(task.options, prepared, session, framework)
    finally:
        backend.stop()
    if world.rank == 0:
        whole = _heading(rank, model, backend) | dict(result)
        output.write_result(whole)
        rank.status.send(messages.Returned(result=whole))


def _run_program(rank: _Rank, rendezvous: Rendezvous) -> None:
    """Let the user's own program find what its framework's launcher would have left, and run it."""
    task, world, output = rank.task, rank.world, rank.output
    if world.rank == 0:
        output.write_spec(task.spec.to_json())
    served = [backend for backend in task.backends if backend.launcher != world.launcher]
    hooks = {backend.framework: program.no_hook for backend in task.backends}
    for backend in served:
        hooks |= backend.hooks(rendezvous, world, rank.peers)
    if isinstance(rank.peers, mpi.MpiPeers):
        mpi.lend()
    program.around_import(hooks)
    current.world = world
    appended = [f"--local-rank={world.local_rank}"] if task.spec.local_rank_argument else []
    output.record(phase="program", target=str(task.target))
    value = program.run_program(task.target, [*appended, *task.spec.args])
    if task.target.kind == "function":
        output.write_value(value)
        rank.status.send(messages.Returned(value=value))
    gc.collect()  # torch's threads can abort an interpreter that ends while DistributedDataParallel's cycles hold them
    _wait_for_all(rank)


def _wait_for_all(rank: _Rank) -> None:
    """Rank 0 serves the others' store: nobody leaves before all have come to their end.

    But a rank that ended too early is missed at once: its connections do not wait.
    """
    for backend in rank.task.backends:
        if backend.name in sys.modules and rank.placement.device == "cpu":
            backend.stop()
    rank.status.note(phase="waiting for the other ranks' end")
    if rank.status.stopped:
        rank.status.wait_for_release()
        return
    rank.status.send(messages.Done())
    if isinstance(rank.peers, mpi.MpiPeers) and mpi.is_finalized():
        return  # the program has ended MPI itself, and with it waited for the others
    with suppress(PeerLostError):  # a rank may end in its own way, os._exit too; how it ended its agent tells
        rank.peers.share(None)
    rank.status.send(messages.Done(leaving=True))


def _meet(rank: _Rank) -> Rendezvous | None:
    """Find rank 0, where the framework's own communication is needed: between devices, and for a program."""
    if rank.task.model and (rank.world.size == 1 or rank.placement.device == "cpu"):
        return None
    from unilaunch.rank.rendezvous import meet

    return _alike(lambda: meet(rank.peers, rank.world, rank.task.spec))


def _collectives(rank: _Rank, backend: Backend, rendezvous: Rendezvous | None) -> Collectives:
    if rendezvous:
        return backend.connect(rank.world, rank.placement, rendezvous, rank.task.spec.timeout)
    return rank.peers.collectives()


def _heading(rank: _Rank, model: Model, backend: Backend) -> "dict[str, JsonValue]":
    return {
        "model": model.name,
        "backend": backend.name,
        "device": rank.placement.device,
        "world_size": rank.world.size,
        "num_hosts": rank.world.num_hosts,
        "launcher": rank.world.launcher,
        "threads": rank.placement.threads,
        "seed": rank.task.spec.seed,
        "versions": dict(backend.versions()),
    }


def _listen(found: Found, host_timeout: float) -> "Listening":
    """Return where the agents are to call: without a `launch` rank 0's agent is the monitor."""
    from unilaunch.monitor.inbox import listen

    return listen(found.heads, several=not found.one_host, host_timeout=host_timeout)


def _attempt(step: Callable[[], T]) -> tuple[T | None, UnilaunchError | None]:
    try:
        return step(), None
    except UnilaunchError as error:
        return None, error


def _alike(step: Callable[[], T]) -> T:
    """Take a step that comes out alike on every rank, since all know the same."""
    try:
        return step()
    except UnilaunchError as error:
        raise RefusedTogetherError(str(error), error.exit_code) from None


def _say(message: object) -> None:
    print(f"unilaunch: {message}", file=sys.stderr, flush=True)  # noqa: T201  (the one line that the user is to read)


def _leave_late(exit_code: int, started: float) -> int:
    time.sleep(max(0.0, started + SHORTEST_LIFE - time.monotonic()))
    return exit_code
