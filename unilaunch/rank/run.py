"""Be one rank: the steps from the launcher's environment to the result, in their order."""

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from unilaunch import environments
from unilaunch.agreement import agree
from unilaunch.backend import Collectives, Peers, Placement, Rendezvous
from unilaunch.errors import EnvironmentMismatchError, RefusedTogetherError, UnilaunchError
from unilaunch.model import Framework, Session
from unilaunch.output.failure import describe_failure
from unilaunch.output.folder import OutputFolder
from unilaunch.output.log import rank_log
from unilaunch.rank import mpi
from unilaunch.rank.alone import Alone
from unilaunch.rank.capture import capture
from unilaunch.rank.facts import tell_facts
from unilaunch.rank.framework_env import framework_env
from unilaunch.rank.placement import Wish, place
from unilaunch.rank.task import Task
from unilaunch.world import Found, World, count_world

T = TypeVar("T")

#: mpirun can hang when many ranks end within a few tenths of a second of their start (Open MPI 4 and 5).
SHORTEST_LIFE = 0.5


@dataclass(frozen=True, slots=True)
class _Rank:
    """Who this rank is and what it is to do, once all ranks have agreed."""

    task: Task
    world: World
    placement: Placement
    peers: Peers
    output: OutputFolder
    environ: Mapping[str, str]


def run(read_task: Callable[[int], Task], environ: Mapping[str, str], started: float) -> int:
    """Be the rank that the launcher assigned, or under no launcher the only one; return the exit code.

    Args:
        read_task: Reads and checks what is to be done, given the world size; raises UnilaunchError.
        environ: The process's environment.
        started: When this process began to work, in seconds of `time.monotonic`.
    """
    peers: Peers = Alone()
    number = 0
    try:
        found = environments.detect(environ)
        number = found.rank
        task, refused = _attempt(lambda: read_task(found.size))
        chosen = mpi.variables(found, environ) if found.size > 1 else {}
        if found.size > 1:
            os.environ.update(chosen)  # noqa: TID251  (written once, before MPI reads it)
            peers = mpi.join(found)
        agree(peers, refused)
        rank = _agree_on_rank(cast("Task", task), found, peers, environ)
        rank.output.record(phase="start", launcher=found.launcher, evidence=found.evidence, variables=chosen)
        return _work(rank)
    except RefusedTogetherError as error:
        if number == 0:
            _say(error)
        return _leave_late(error.exit_code, started)
    except UnilaunchError as error:
        _say(error)
        return _end_job(peers, _leave_late(error.exit_code, started))


def _agree_on_rank(task: Task, found: Found, peers: Peers, environ: Mapping[str, str]) -> _Rank:
    """Return who this rank is, and open its output folder."""
    facts = tell_facts(task, peers, environ)
    world = count_world(found, [fact["host"] for fact in facts], facts[found.rank]["name"])
    if world.local_size != found.local_size:
        raise EnvironmentMismatchError(
            f"{found.launcher} says {found.local_size} ranks on {world.host}, and {world.local_size} ranks named it: "
            "are two hosts called the same?"
        )
    wish = Wish(task.spec.device, task.backend.devices, task.spec.threads)
    placement = _alike(lambda: place(wish, facts))[found.rank]
    output = OutputFolder(task.spec.output_dir, world.rank, world.size, found.run_id)
    _, refused = _attempt(output.open)
    agree(peers, refused)
    return _Rank(task, world, placement, peers, output, environ)


def _work(rank: _Rank) -> int:
    """Do the task with the output captured; record and show whatever ends it badly, and end the other ranks."""
    world, output = rank.world, rank.output
    with capture(output.stdout, output.stderr):
        try:
            _do(rank)
        except UnilaunchError as error:
            output.write_failure(describe_failure(world, rank.placement, error, error.exit_code))
            alone = not isinstance(error, RefusedTogetherError)
            if alone or world.rank == 0:
                _say(error)
            else:
                output.append_stderr(f"unilaunch: {error}\n")
            return _end_job(rank.peers, error.exit_code) if alone else error.exit_code
        except Exception as error:  # noqa: BLE001  (a rank's last net)
            output.write_failure(describe_failure(world, rank.placement, error, 1))
            traceback.print_exc()
            _say(f"rank {world.rank} on {world.host} failed, the job ends")
            return _end_job(rank.peers, 1)
    return 0


def _do(rank: _Rank) -> None:
    """Refuse bad input first, then start the framework, then run the model."""
    task, world, placement, output = rank.task, rank.world, rank.placement, rank.output
    rendezvous = _meet(rank)
    chosen = framework_env(task.backend, world, placement, rendezvous, rank.environ)
    os.environ.update(chosen)  # noqa: TID251  (written once, before numpy and the framework read it)
    gc.enable()
    log = rank_log(task.spec.log_level, world.host, world.rank, output.stderr)
    session = Session(world, placement, rank.peers, output, log, task.spec.seed)
    output.record(phase="prepare", device=str(placement), threads=placement.threads, variables=chosen)
    prepared = task.model.prepare(task.options, session)
    if world.rank == 0:
        output.write_spec(task.spec.model_dump(mode="json") | {"options": task.options.model_dump(mode="json")})
    output.record(phase="framework import")
    task.backend.start(world, placement)
    try:
        output.record(phase="init")
        framework = Framework(task.backend, _collectives(rank, rendezvous))
        result = task.model.run(task.options, prepared, session, framework)
    finally:
        task.backend.stop()
    if world.rank == 0:
        output.write_result(_heading(rank) | dict(result))
    output.record(phase="end")


def _meet(rank: _Rank) -> Rendezvous | None:
    """Find rank 0, where the framework's own communication is needed: between devices."""
    if rank.world.size == 1 or rank.placement.device == "cpu":
        return None
    from unilaunch.rank.rendezvous import meet

    return _alike(lambda: meet(rank.peers, rank.world, rank.task.spec))


def _collectives(rank: _Rank, rendezvous: Rendezvous | None) -> Collectives:
    if rendezvous:
        return rank.task.backend.connect(rank.world, rank.placement, rendezvous, rank.task.spec.timeout)
    return rank.peers.collectives() if isinstance(rank.peers, mpi.MpiPeers) else Alone()


def _heading(rank: _Rank) -> dict[str, Any]:
    return {
        "model": rank.task.model.name,
        "backend": rank.task.backend.name,
        "device": rank.placement.device,
        "world_size": rank.world.size,
        "num_hosts": rank.world.num_hosts,
        "launcher": rank.world.launcher,
        "threads": rank.placement.threads,
        "seed": rank.task.spec.seed,
        "versions": dict(rank.task.backend.versions()),
    }


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


def _end_job(peers: Peers, exit_code: int) -> int:
    """End the other ranks too: they may be waiting for this one in a collective."""
    if isinstance(peers, mpi.MpiPeers):
        time.sleep(0.05)  # the tee has the last line before mpirun kills what is left
        peers.abort(exit_code)
    return exit_code
