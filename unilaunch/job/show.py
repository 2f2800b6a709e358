"""Show a plan, as text or as JSON."""

import json
import shlex
import sys
from collections.abc import Iterator

from unilaunch.job.plan import Plan
from unilaunch.spec.redaction import HIDDEN, secret_arguments, secret_variables


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print the command line, and the host and device of every rank."""
    text = _as_json(plan) if as_json else "\n".join(_as_text(plan))
    sys.stdout.write(text + "\n")


def _as_json(plan: Plan) -> str:
    spec = plan.task.spec.shown(plan.task.options, whole=True)
    ranks = [{"rank": row.rank, "host": row.host, "device": row.device} for row in plan.rows]
    mpirun = {
        "path": str(plan.mpirun.path), "launcher": plan.mpirun.launcher,
        "version": ".".join(map(str, plan.mpirun.version)),
    }  # fmt: skip
    return json.dumps({"line": plan.line, "mpirun": mpirun, "why": plan.why, "ranks": ranks, "spec": spec}, indent=1)


def _as_text(plan: Plan) -> Iterator[str]:
    yield shlex.join(plan.line)
    for name in secret_variables(plan.request.mpi.export):
        yield f"(export {name} before: its value is a secret, and is not shown)"
    if secret_arguments(plan.request.args):
        yield f"({HIDDEN}: an argument whose value is a secret, and is not shown)"
    yield ""
    width = max(len("host"), *(len(row.host) for row in plan.rows))
    yield f"{'rank':>6}  {'host':{width}}  device"
    for row in plan.rows:
        yield f"{row.rank:6}  {row.host:{width}}  {row.device}"
    yield ""
    names = {row.host for row in plan.rows}
    where, unknown = f"{len(names)} host{'s' * (len(names) != 1)}", ""
    if plan.task.spec.nnodes > 1:
        where, unknown = f"{plan.task.spec.nnodes} nodes", "another node, on which the same line is typed"
    elif "?" in names:
        where = "hosts that mpirun chooses"
        unknown = "only mpirun can tell; --map-by slot or node is foreseen, if every host says its slots"
    launcher = f"{plan.mpirun.launcher} {'.'.join(map(str, plan.mpirun.version))}"
    number = len(plan.rows)
    yield f"{number} rank{'s' * (number != 1)} on {where}, started by {launcher} ({plan.why})"
    yield from (f"({note})" for note in plan.notes)
    if unknown:
        yield f"(?: {unknown})"
    elif plan.request.several:
        yield "(devices of the other hosts: taken to be as those of this one)"
