"""A batch script for Slurm."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.exports import secrets
from unilaunch.job.emit.job_file import JobFile
from unilaunch.job.emit.spec_line import spec_json
from unilaunch.job.plan import Plan
from unilaunch.launch_spec import MpiSpec
from unilaunch.spec import Spec

#: What Slurm usually calls each kind of device, in --gres.
GRES = {"cuda": "gpu", "npu": "npu"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOOPBACK = re.compile(r"localhost|127\..*|::1")  # no node of Slurm's has such a name


class Sbatch(JobFile):
    """srun starts the ranks: unilaunch reads Slurm's own environment.

    If the user gave options of mpirun, mpirun does, on the hosts that Slurm has allocated.
    """

    @override
    def lines(self, plan: Plan, options: Spec) -> Iterator[str]:
        """Refuse to export what is no name of a variable."""
        yield "#!/bin/bash"
        yield "# Written by unilaunch launch --emit sbatch; submit it with sbatch. Its spec, as --config reads it:"
        yield f"# {spec_json(plan)}"
        yield f"#SBATCH --job-name=unilaunch-{_job_name(plan.task.target.name)}"
        yield from _nodes(plan)
        yield from _resources(plan)
        yield "#SBATCH --output=%x-%j.out"
        yield "set -euo pipefail"
        yield from _variables(plan)
        yield from _start(plan)


def _hosts(plan: Plan) -> tuple[dict[str, int], bool]:
    """Return the number of ranks of each host that is named, in their order, and whether it can be foreseen."""
    hosts: dict[str, int] = Counter(row.host for row in plan.rows)
    foreseen = "?" not in hosts
    if not foreseen:
        hosts = {host.name: 0 for host in plan.request.hosts}
    named = bool(plan.request.hosts) and not any(_LOOPBACK.fullmatch(name) for name in hosts)
    return hosts if named else {}, foreseen


def _nodes(plan: Plan) -> Iterator[str]:
    hosts, foreseen = _hosts(plan)
    yield f"#SBATCH --ntasks={len(plan.rows)}"
    if hosts:
        yield f"#SBATCH --nodes={len(hosts)}"
        yield f"#SBATCH --nodelist={','.join(hosts)}"
    elif not plan.several:
        yield "#SBATCH --nodes=1"
    if hosts and foreseen and not _is_uneven(plan):
        yield f"#SBATCH --ntasks-per-node={len(plan.rows) // len(hosts)}"


def _is_uneven(plan: Plan) -> bool:
    hosts, foreseen = _hosts(plan)
    return foreseen and len(set(hosts.values())) > 1


def _resources(plan: Plan) -> Iterator[str]:
    """Give what the ranks take of a node: cores if the user named their number, and a device for each rank."""
    spec, (hosts, foreseen) = plan.task.spec, _hosts(plan)
    kind = plan.rows[0].device.partition(":")[0]
    if spec.threads:
        yield f"#SBATCH --cpus-per-task={spec.threads}"
    if kind in GRES and foreseen:
        yield f"#SBATCH --gres={GRES[kind]}:{max(hosts.values(), default=len(plan.rows))}"
    elif kind in GRES:
        yield f"# Only mpirun can tell how many ranks a node gets: add #SBATCH --gres={GRES[kind]}:N"
    elif spec.device == "auto":
        yield "# No device was seen where this was written: --device cuda asks for one for each rank."


def _start(plan: Plan) -> Iterator[str]:
    program = shlex.join(plan.request.program)
    srun = f"exec srun --cpus-per-task={plan.task.spec.threads}" if plan.task.spec.threads else "exec srun"
    if plan.task.spec.model_fields_set & set(MpiSpec.model_fields) - {"export", "allow_run_as_root"}:
        inside = replace(plan.request.shown(), hosts=(), hostfile=None)
        yield f"exec {shlex.join(plan.mpirun.write(inside))}"
    elif _is_uneven(plan):
        yield "# One line for each rank: Slurm would deal the ranks out evenly."
        yield "SLURM_HOSTFILE=$(mktemp) && export SLURM_HOSTFILE"
        yield f"printf '%s\\n' {shlex.join(row.host for row in plan.rows)} >\"$SLURM_HOSTFILE\""
        yield f"{srun} --distribution=arbitrary {program}"
    else:
        yield f"{srun} {program}"


def _variables(plan: Plan) -> Iterator[str]:
    """Give the `-x NAME=V` of the user; Slurm passes on by itself what is exported where sbatch is called."""
    hidden = secrets(plan.request.mpi.export)
    for text in plan.request.mpi.export:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):  # bash would run what stands in it
            raise SpecError(f"-x: {name!r} is no name of a variable; expected NAME or NAME=VALUE")
        if name in hidden:
            yield f': "${{{name}:?export it before sbatch: its value is a secret and not written here}}"'
        elif equals:
            yield f"export {name}={shlex.quote(value)}"


def _job_name(target: str) -> str:
    """Return the target's name as a directive and a file's name can hold it: sbatch refuses one with a space."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", target.rpartition("/")[2])
