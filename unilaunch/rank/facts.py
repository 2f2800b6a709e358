"""The facts that ranks exchange before the start: their hosts, cores and devices, and their task."""

import json
import os
import socket
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from unilaunch.backend import Peers
from unilaunch.cgroups import cpu_quota
from unilaunch.devices import visible_devices
from unilaunch.errors import RefusedTogetherError
from unilaunch.json_value import JsonValue
from unilaunch.launchers import set_by_launchers
from unilaunch.placeholders import placeholder_values
from unilaunch.rank.framework_env import exported_threads
from unilaunch.rank.placement import Facts
from unilaunch.task import Task
from unilaunch.world import BOOT_ID

if TYPE_CHECKING:
    from unilaunch.spec import RunSpec


def tell_facts(
    task: "Task[RunSpec]", peers: Peers, environ: Mapping[str, str], run_id: str, monitor: str
) -> list[Facts]:
    """Return the facts of every rank about its host, by rank. All ranks must call it.

    Args:
        task: The task of this rank.
        peers: The ranks.
        environ: The process's environment.
        run_id: The run.
        monitor: Where the agents must connect; set on rank 0, if its agent runs the monitor.

    Raises:
        RefusedTogetherError: Two ranks have different tasks.
    """
    told = task.spec.to_json() | (task.options.to_json() if task.options else {})
    # Rank 0 sends the answers of all ranks to all ranks: a digest in place of arguments that may be large.
    digest = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    answers = peers.share({"facts": own_facts(environ, run_id, monitor), "told": digest})
    ranks = cast("list[dict[str, JsonValue]]", answers)
    if any(answer["told"] != ranks[0]["told"] for answer in ranks):
        all_told = cast("list[dict[str, JsonValue]]", peers.share(told))
        for rank, other in enumerate(all_told):
            _compare(rank, other, all_told[0])
    return [cast("Facts", answer["facts"]) for answer in ranks]


def own_facts(environ: Mapping[str, str], run_id: str, monitor: str) -> JsonValue:
    """Return the facts of this rank about its host, as JSON. The arguments are those of `tell_facts`."""
    name = socket.gethostname()
    # Two hosts can have the same name, and two containers of one machine have two names.
    host = f"{name} {BOOT_ID.read_text(encoding='ascii').strip()}"
    facts = Facts(
        name=name,
        host=host,
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
    for field in {**first, **told}:
        if told.get(field) != first.get(field):
            raise RefusedTogetherError(
                f"rank 0 has {field}={first.get(field)!r} and rank {rank} {field}={told.get(field)!r}: "
                "start all ranks with the same options and the same UNILAUNCH_ variables",
                exit_code=2,
            )
