"""Be one rank: the steps from the launcher's environment to the result, in their order."""

import gc
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from unilaunch import environments
from unilaunch.agreement import agree
from unilaunch.backend import Collectives, Peers, Placement
from unilaunch.errors import EnvironmentMismatchError, RefusedTogetherError, UnilaunchError
from unilaunch.model import Session
from unilaunch.output.folder import OutputFolder
from unilaunch.output.log import start_log
from unilaunch.rank import mpi
from unilaunch.rank.alone import Alone
from unilaunch.rank.capture import capture
from unilaunch.rank.framework_env import framework_env
from unilaunch.rank.placement import Facts, Wish, place, visible_devices
from unilaunch.rank.task import Task
from unilaunch.spec import RunSpec
from unilaunch.world import Found, World, count_world

T = TypeVar("T")

#: mpirun can hang when many ranks end within a few tenths of a second of their start (Open MPI 4 and 5).
SHORTEST_LIFE = 0.5


def run(read_task: Callable[[int], Task], environ: Mapping[str, str], started: float) -> int:
    """Be the rank that the launcher assigned, or under no launcher the only one; return the exit code.

    Args:
        read_task: Reads and checks what is to be done, given the world size; raises UnilaunchError.
        environ: The process's environment.
        started: When this process began to work, in seconds of `time.monotonic`.
    """
    peers: Peers = Alone()
    rank = 0
    try:
        found = environments.detect(environ)
        rank = found.rank
        task, refused = _attempt(lambda: read_task(found.size))
        if found.size > 1:
            peers = _join(found, environ)
        agree(peers, refused)
        return _be_rank(cast("Task", task), found, peers, environ)
    except RefusedTogetherError as error:
        if rank == 0:
            _say(error)
        return _leave_late(error.exit_code, started)
    except UnilaunchError as error:
        _say(error)
        return _end_job(peers, _leave_late(error.exit_code, started))


def _attempt(step: Callable[[], T]) -> tuple[T | None, UnilaunchError | None]:
    try:
        return step(), None
    except UnilaunchError as error:
        return None, error


def _join(found: Found, environ: Mapping[str, str]) -> Peers:
    os.environ.update(mpi.variables(found, environ))  # noqa: TID251  (written here, once, before MPI reads it)
    return mpi.join(found)


def _be_rank(task: Task, found: Found, peers: Peers, environ: Mapping[str, str]) -> int:
    """Do *task* as the rank *found*; from here on all ranks know that all can."""
    facts = _gather_facts(task.spec, peers, environ)
    hosts = [fact["host"] for fact in facts]
    world = count_world(found, hosts, facts[found.rank]["name"])
    wish = Wish(task.spec.device, task.backend.devices, task.spec.threads)
    placement = _all_or_none(lambda: place(wish, facts))[found.rank]
    _check_counts(found, world)
    output = OutputFolder(task.spec.output_dir, world.rank, world.size, found.run_id)
    _, refused = _attempt(output.open)
    agree(peers, refused)
    with capture(output.stdout, output.stderr):
        start_log(task.spec.log_level, world.host, world.rank, output.stderr)
        return _recorded(task, world, placement, peers, output, environ)


def _gather_facts(spec: RunSpec, peers: Peers, environ: Mapping[str, str]) -> list[Facts]:
    """Return what every rank sees of its host, and refuse ranks that were told to do different things."""
    name = socket.gethostname()
    mine = Facts(
        name=name,
        host=f"{name} {Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}",
        cores=sorted(os.sched_getaffinity(0)),
        devices=visible_devices(environ),
    )
    told = spec.model_dump(mode="json")
    answers = cast("list[Any]", peers.share([dict(mine), told]))  # type: ignore[list-item]
    for rank, (_, other) in enumerate(answers):
        differing = [field for field, value in other.items() if value != answers[0][1][field]]
        if differing:
            field = differing[0]
            raise RefusedTogetherError(
                f"rank {rank} was told {field}={other[field]!r} and rank 0 {field}={answers[0][1][field]!r}: "
                "start all ranks with the same options", 2
            )  # fmt: skip
    return [cast("Facts", fact) for fact, _ in answers]


def _all_or_none(step: Callable[[], T]) -> T:
    """Take a step that comes out alike on every rank, since all know the same."""
    try:
        return step()
    except UnilaunchError as error:
        raise RefusedTogetherError(str(error), error.exit_code) from None


def _check_counts(found: Found, world: World) -> None:
    if world.local_size != found.local_size:
        raise EnvironmentMismatchError(
            f"{found.launcher} says {found.local_size} ranks on {world.host}, and {world.local_size} ranks named it: "
            "are two hosts called the same?"
        )


def _recorded(
    task: Task, world: World, placement: Placement, peers: Peers, output: OutputFolder, environ: Mapping[str, str]
) -> int:
    """Do *task*; whatever ends it badly is recorded, and ends the other ranks."""
    try:
        _do(task, world, placement, peers, output, environ)
    except RefusedTogetherError:
        raise
    except UnilaunchError as error:
        output.write_failure(_failure(world, placement, error, error.exit_code))
        raise
    except Exception as error:  # noqa: BLE001  (the last net of a rank: record, show, end all ranks)
        output.write_failure(_failure(world, placement, error, 1))
        traceback.print_exc()
        print(f"unilaunch: rank {world.rank} on {world.host} failed, the job ends", file=sys.stderr)  # noqa: T201
        sys.stderr.flush()
        time.sleep(0.05)  # the tee of this rank has the last line before the others are killed
        return _end_job(peers, 1)
    return 0


def _do(
    task: Task, world: World, placement: Placement, peers: Peers, output: OutputFolder, environ: Mapping[str, str]
) -> None:
    own_network = world.size > 1 and placement.device != "cpu"
    rendezvous = None
    if own_network:
        from unilaunch.rank.rendezvous import meet

        rendezvous = meet(peers, world, task.spec)
    chosen = framework_env(task.backend, world, placement, rendezvous, environ)
    os.environ.update(chosen)  # noqa: TID251  (written here, once, before the framework reads it)
    output.record(phase="framework import", variables=chosen)
    gc.enable()
    task.backend.start(world, placement)
    try:
        collectives: Collectives
        if rendezvous:
            output.record(phase="init")
            collectives = task.backend.connect(world, placement, rendezvous, task.spec.timeout)
        else:
            collectives = peers.collectives() if isinstance(peers, mpi.MpiPeers) else Alone()
        session = Session(world, placement, task.backend, peers, collectives, output, task.spec.seed)
        if world.rank == 0:
            output.write_spec(task.spec.model_dump(mode="json") | {"options": task.options.model_dump(mode="json")})
        result = task.model.run(task.options, session)
        if world.rank == 0:
            output.write_result(_heading(task, world, placement) | dict(result))
        output.record(phase="end")
    finally:
        task.backend.stop()


def _heading(task: Task, world: World, placement: Placement) -> dict[str, Any]:
    return {
        "model": task.model.name,
        "backend": task.backend.name,
        "device": placement.device,
        "world_size": world.size,
        "num_hosts": world.num_hosts,
        "launcher": world.launcher,
        "threads": placement.threads,
        "seed": task.spec.seed,
        "versions": dict(task.backend.versions()),
    }


def _failure(world: World, placement: Placement, error: Exception, exit_code: int) -> dict[str, Any]:
    return {
        "rank": world.rank,
        "host": world.host,
        "device": str(placement),
        "time": time.time(),
        "exit_code": exit_code,
        "error": type(error).__name__,
        "message": str(error),
        "traceback": traceback.format_exception(error),
    }


def _say(error: UnilaunchError) -> None:
    print(f"unilaunch: {error}", file=sys.stderr, flush=True)  # noqa: T201  (the one line that the user is to read)


def _leave_late(exit_code: int, started: float) -> int:
    time.sleep(max(0.0, started + SHORTEST_LIFE - time.monotonic()))
    return exit_code


def _end_job(peers: Peers, exit_code: int) -> int:
    """End the other ranks too: they may be waiting for this one in a collective."""
    if isinstance(peers, mpi.MpiPeers):
        peers.abort(exit_code)
    return exit_code
