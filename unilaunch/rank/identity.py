"""The identity of this rank: the facts on which all ranks agree before they work."""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from unilaunch.errors import EnvironmentMismatchError, RefusedTogetherError, one_line, say
from unilaunch.folder.folder import RESULT, SPEC_FILE, OutputFolder, Use
from unilaunch.interfaces.agreement import alike, together
from unilaunch.interfaces.backend import Peers, Placement
from unilaunch.interfaces.world import LauncherInfo, World, count_world, host_identity
from unilaunch.json_value import JsonValue
from unilaunch.launchers import set_by_launchers
from unilaunch.machine.cgroups import cpu_quota
from unilaunch.machine.devices import absent_devices, visible_devices
from unilaunch.monitor import messages
from unilaunch.rank.framework_env import exported_threads
from unilaunch.rank.placement import Facts, device_kinds, place
from unilaunch.rank.status import Status
from unilaunch.record import Record, replace
from unilaunch.spec.placeholders import placeholder_values, replace_placeholders
from unilaunch.spec.redaction import redact_fields
from unilaunch.spec.task import Task
from unilaunch.spec.variables import MONITOR
from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.monitor.connection import Listening
    from unilaunch.spec.run_spec import RunSpec


class Rank(Record):
    """The identity and the task of this rank, once all ranks have agreed.

    Attributes:
        task: Its task.
        world: Its rank, the world size and its host.
        placement: Its device and threads.
        peers: The other ranks.
        output: Its part of the output folder.
        environ: The environment that its launcher gave it.
        status: The status channel to its agent.
    """

    task: "Task[RunSpec]"
    world: World
    placement: Placement
    peers: Peers
    output: OutputFolder
    environ: Mapping[str, str]
    status: Status


def complete(found: LauncherInfo, peers: Peers) -> LauncherInfo:
    """Return *found* completed: rank 0 names the run if the launcher does not, and bare PMIx gives no world size."""
    if found.run_id and found.size:
        return found
    names = peers.share(f"{found.launcher}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    return replace(found, run_id=found.run_id or str(names[0]), size=len(names))


def agree_on_rank(
    task: "Task[RunSpec]", found: LauncherInfo, peers: Peers, environ: Mapping[str, str], status: Status
) -> Rank:
    """Return the identity of this rank, with its output folder open; all ranks must call it.

    Raises:
        UnilaunchError: The ranks contradict each other, or one of them cannot do its task.
    """
    listening = _listen(found, task.spec.host_timeout) if found.rank == 0 and MONITOR not in environ else None
    facts = tell_facts(task, peers, environ, found, listening.where if listening else "")
    # Two starts of torchrun or msrun with the same address have the same name, also on two hosts.
    found = replace(found, run_id=f"{found.run_id}-{facts[0]['start']}")
    world = count(found, facts)
    placement = _place(task, facts)[world.rank]
    for line in absent_devices(environ) if world.rank == 0 else ():
        say(line)
    world = replace(world, device=str(placement))
    output = _open_output(task, world, found.run_id, facts, peers)
    output.on_phase = status.note
    status.hand_over(output.lock, messages.HoldLock())
    if listening:
        status.hand_over(listening.listener.detach(), _be_monitor(task.spec, world, listening))
    if facts[0]["monitor"]:
        status.send(messages.MonitorAt(facts[0]["monitor"]))
    status.send(
        messages.Placed(
            host=world.host,
            device=world.device,
            run=found.run_id,
            folder=str(output.rank_dir),
            shown=_shown(task.spec.console, world),
            abort=task.spec.abort,
            has_handlers=task.model is None,
        )
    )
    return Rank(task, world, placement, peers, output, environ, status)


def count(found: LauncherInfo, facts: Sequence[Facts]) -> World:
    """Return this rank's `World`, counted from the hosts that the ranks name.

    Raises:
        EnvironmentMismatchError: The launcher has another number of ranks on this host.
    """
    world = count_world(found, [fact["host"] for fact in facts], facts[found.rank]["name"])
    if found.local_size not in {None, world.local_size}:
        raise EnvironmentMismatchError(
            f"{found.launcher} says {found.local_size} ranks on {world.host}, and {world.local_size} ranks named it: "
            "are two hosts called the same?"
        )
    return world


def _place(task: "Task[RunSpec]", facts: Sequence[Facts]) -> list[Placement]:
    kinds = device_kinds(task.backends)
    return alike(lambda: place(task.spec.device, kinds, task.spec.threads, facts))


def _open_output(
    task: "Task[RunSpec]", world: World, run_id: str, facts: Sequence[Facts], peers: Peers
) -> OutputFolder:
    """Return the open output folder of this rank; no rank moves files before all ranks may use the folder."""
    # If a host does not have the current folder, mpirun starts its ranks in the home folder.
    own = facts[world.rank]["folder"] == facts[0]["folder"]
    shown = alike(lambda: replace_placeholders(task.spec.output_dir, facts[0]["placeholders"]))
    root = shown if own else Path(facts[0]["folder"], shown)
    use = Use(
        shown,
        claims=world.local_rank == 0,
        foreign=not own,
        files=[SPEC_FILE, RESULT, *task.model.files(task.options)] if task.model else [SPEC_FILE],
        resumes=bool(task.model and task.model.resumes(task.options)),
    )
    output = OutputFolder(root, world.rank, world.size, run_id, use)
    for step in (output.claim, output.open):
        with together(peers):
            step()
    return output


def _shown(console: str, world: World) -> messages.Shown:
    """Return how the console shows this rank's output."""
    if console != "rank0" and world.size > 1:
        return messages.Shown.LABELLED if console == "labelled" else messages.Shown.LINES
    return messages.Shown.NOTHING if world.rank else messages.Shown.ALL


def _be_monitor(spec: "RunSpec", world: World, listening: "Listening") -> messages.BeMonitor:
    return messages.BeMonitor(
        secret=listening.secret.hex(),
        size=world.size,
        several=world.num_hosts > 1,
        host_timeout=spec.host_timeout,
        stall_timeout=spec.stall_timeout,
        abort=spec.abort,
        metrics=spec.metrics_port,
        metrics_address=spec.metrics_address,
    )


def _listen(found: LauncherInfo, host_timeout: float) -> "Listening":
    """Return where the agents must connect: without `launch` the monitor runs in rank 0's agent."""
    from unilaunch.monitor.connection import listen

    return listen(found.rank_0_hosts, several=not found.one_host, host_timeout=host_timeout)


def tell_facts(
    task: "Task[RunSpec]", peers: Peers, environ: Mapping[str, str], found: LauncherInfo, monitor: str
) -> list[Facts]:
    """Return the facts of every rank about its host, by rank. All ranks must call it.

    Args:
        task: The task of this rank.
        peers: The ranks.
        environ: The process's environment.
        found: The launcher info.
        monitor: Where the agents must connect; set on rank 0, if its agent runs the monitor.

    Raises:
        RefusedTogetherError: Two ranks have different tasks, or different versions of unilaunch.
    """
    fields = task.spec.to_json() | (task.options.to_json() if task.options else {})
    del fields["args"]  # `mpirun bash -c 'run t.py --local_rank $OMPI_COMM_WORLD_LOCAL_RANK'`
    # Rank 0 sends the answers of all ranks to all ranks: a digest in place of arguments that may be large.
    digest = sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    facts = own_facts(environ, found.run_id, monitor)
    answers = peers.share({"facts": facts, "told": digest, "program": _own_program()})
    ranks = cast("list[dict[str, JsonValue]]", answers)
    difference = compare_programs([cast("list[str]", answer.get("program") or ["?"] * 4) for answer in ranks])
    if difference and found.rank == 0:
        say(difference)
    if any(answer["told"] != ranks[0]["told"] for answer in ranks):
        all_fields = cast("list[dict[str, JsonValue]]", peers.share(fields))
        for rank, other in enumerate(all_fields):
            _compare(rank, other, all_fields[0])
    return [cast("Facts", answer["facts"]) for answer in ranks]


def _own_program() -> JsonValue:
    """Return the host, the version of unilaunch, that of Python, and Python's path, of this rank."""
    python = ".".join(map(str, sys.version_info[:2]))
    return [socket.gethostname(), __version__, python, sys.executable]


def compare_programs(programs: Sequence[Sequence[str]]) -> str:
    """Return a line on the first rank whose Python has another version than rank 0's; "" if there is none.

    On another host a bare mpirun can find another Python than that of the user's virtual environment.

    Args:
        programs: Of each rank: the host, the version of unilaunch, the version of Python, and Python's path.

    Raises:
        RefusedTogetherError: A rank has another version of unilaunch.
    """
    first = programs[0]
    for rank, program in enumerate(programs):
        if program[1:3] != first[1:3]:
            mine, here = (f"unilaunch {one[1]} and Python {one[2]} ({one[3]})" for one in (program, first))
            line = (
                f"rank {rank} on {program[0]} has {mine}, rank 0 on {first[0]} {here}: for the same on all hosts type "
                f"mpirun ... {first[3]} -m unilaunch run ..., or add -x PATH"
            )
            if program[1] != first[1]:
                raise RefusedTogetherError(one_line(line), exit_code=2)
            return one_line(line)
    return ""


def own_facts(environ: Mapping[str, str], run_id: str, monitor: str) -> JsonValue:
    """Return the facts of this rank about its host, as JSON."""
    facts = Facts(
        name=socket.gethostname(),
        host=host_identity(),
        folder=str(Path.cwd()),
        cores=sum(1 << core for core in os.sched_getaffinity(0)),
        quota=cpu_quota(),
        threads=exported_threads(environ, set_by_launchers(environ)),
        devices=visible_devices(environ),
        monitor=monitor,
        placeholders=placeholder_values(environ, run_id),
        start=os.urandom(4).hex(),
    )
    return cast("JsonValue", dict(facts))


def _compare(rank: int, fields: Mapping[str, JsonValue], first: Mapping[str, JsonValue]) -> None:
    def shown(values: Mapping[str, JsonValue]) -> JsonValue:
        return cast("JsonValue", redact_fields({field: values.get(field)})[field])

    for field in {**first, **fields}:
        if fields.get(field) != first.get(field):
            raise RefusedTogetherError(
                f"rank 0 has {field}={shown(first)!r} and rank {rank} {field}={shown(fields)!r}: "
                "start all ranks with the same options and the same UNILAUNCH_ variables",
                exit_code=2,
            )
