"""Show a plan, as text or as JSON."""

import json
import shlex
import sys
from collections.abc import Iterator

from unilaunch.exports import secrets
from unilaunch.job.plan import Plan


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print the command line, and the host and device of every rank."""
    text = _as_json(plan) if as_json else "\n".join(_as_text(plan))
    sys.stdout.write(text + "\n")


def _as_json(plan: Plan) -> str:
    spec = plan.task.spec.shown().model_dump(mode="json")
    spec["options"] = plan.task.options.model_dump(mode="json") if plan.task.options else {}
    ranks = [{"rank": row.rank, "host": row.host, "device": row.device} for row in plan.rows]
    mpirun = {
        "path": str(plan.mpirun.path), "launcher": plan.mpirun.launcher,
        "version": ".".join(map(str, plan.mpirun.version)),
    }  # fmt: skip
    return json.dumps({"line": plan.line, "mpirun": mpirun, "ranks": ranks, "spec": spec}, indent=1)


def _as_text(plan: Plan) -> Iterator[str]:
    yield shlex.join(plan.line)
    yield from (
        f"(export {name} before: its value is a secret, and is not shown)" for name in secrets(plan.request.mpi.export)
    )
    yield ""
    width = max(len("host"), *(len(row.host) for row in plan.rows))
    yield f"{'rank':>6}  {'host':{width}}  device"
    for row in plan.rows:
        yield f"{row.rank:6}  {row.host:{width}}  {row.device}"
    yield ""
    names = {row.host for row in plan.rows}
    where = "hosts that mpirun chooses" if "?" in names else f"{len(names)} host{'s' * (len(names) != 1)}"
    launcher = f"{plan.mpirun.launcher} {'.'.join(map(str, plan.mpirun.version))}"
    yield f"{len(plan.rows)} ranks on {where}, started by {launcher}"
    if "?" in names:
        yield "(?: only mpirun can tell; --map-by slot or node is foreseen, if every host says its slots)"
    elif plan.request.several:
        yield "(devices of the other hosts: taken to be as those of this one)"
