"""The facts that ranks exchange before the start: their hosts, cores and devices, and their task."""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from unilaunch.errors import RefusedTogetherError, one_line, say
from unilaunch.interfaces.backend import Peers
from unilaunch.interfaces.world import LauncherInfo, host_identity
from unilaunch.json_value import JsonValue
from unilaunch.launchers import set_by_launchers
from unilaunch.machine.cgroups import cpu_quota
from unilaunch.machine.devices import visible_devices
from unilaunch.rank.framework_env import exported_threads
from unilaunch.rank.placement import Facts
from unilaunch.spec.placeholders import placeholder_values
from unilaunch.spec.redaction import redact_fields
from unilaunch.spec.task import Task
from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.spec.run_spec import RunSpec


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
    told = task.spec.to_json() | (task.options.to_json() if task.options else {})
    del told["args"]  # `mpirun bash -c 'run t.py --local_rank $OMPI_COMM_WORLD_LOCAL_RANK'`
    # Rank 0 sends the answers of all ranks to all ranks: a digest in place of arguments that may be large.
    digest = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    facts = own_facts(environ, found.run_id, monitor)
    answers = peers.share({"facts": facts, "told": digest, "program": _own_program()})
    ranks = cast("list[dict[str, JsonValue]]", answers)
    difference = compare_programs([cast("list[str]", answer.get("program") or ["?"] * 4) for answer in ranks])
    if difference and found.rank == 0:
        say(difference)
    if any(answer["told"] != ranks[0]["told"] for answer in ranks):
        all_told = cast("list[dict[str, JsonValue]]", peers.share(told))
        for rank, other in enumerate(all_told):
            _compare(rank, other, all_told[0])
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
    """Return the facts of this rank about its host, as JSON.

    Args:
        environ: The process's environment.
        run_id: The run.
        monitor: Where the agents must connect; see `tell_facts`.
    """
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


def _compare(rank: int, told: Mapping[str, JsonValue], first: Mapping[str, JsonValue]) -> None:
    def shown(values: Mapping[str, JsonValue]) -> JsonValue:
        return cast("JsonValue", redact_fields({field: values.get(field)})[field])

    for field in {**first, **told}:
        if told.get(field) != first.get(field):
            raise RefusedTogetherError(
                f"rank 0 has {field}={shown(first)!r} and rank {rank} {field}={shown(told)!r}: "
                "start all ranks with the same options and the same UNILAUNCH_ variables",
                exit_code=2,
            )
