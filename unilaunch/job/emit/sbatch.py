"""A batch script for Slurm."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from unilaunch.errors import SpecError
from unilaunch.job.emit.spec_line import spec_json
from unilaunch.job.plan import Plan, write

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOOPBACK = re.compile(r"localhost|127\..*|::1")  # no node of Slurm's has such a name


def lines(plan: Plan) -> Iterator[str]:
    """Give the script's lines.

    srun starts the ranks: unilaunch reads Slurm's own environment. If the user gave options of mpirun, mpirun does, on
    the hosts that Slurm has allocated.

    Raises:
        SpecError: What is to be exported is no name of a variable.
    """
    hosts = Counter(row.host for row in plan.rows)
    foreseen = "?" not in hosts
    nodes = list(hosts) if foreseen else [host.name for host in plan.request.hosts]
    named = bool(plan.request.hosts) and not any(_LOOPBACK.fullmatch(name) for name in nodes)
    uneven = named and foreseen and len(set(hosts.values())) > 1
    yield "#!/bin/bash"
    yield "# Written by unilaunch launch --emit sbatch; submit it with sbatch. Its spec, as --config reads it:"
    yield f"# {spec_json(plan)}"
    yield f"#SBATCH --job-name=unilaunch-{_job_name(plan.task.target.name)}"
    yield f"#SBATCH --ntasks={len(plan.rows)}"
    if named:
        yield f"#SBATCH --nodes={len(nodes)}"
        yield f"#SBATCH --nodelist={','.join(nodes)}"
    elif not plan.several:
        yield "#SBATCH --nodes=1"
    if named and foreseen and not uneven:
        yield f"#SBATCH --ntasks-per-node={len(plan.rows) // len(hosts)}"
    yield "#SBATCH --output=%x-%j.out"
    yield "set -euo pipefail"
    yield from _variables(plan)
    if plan.task.spec.mpi.model_fields_set - {"x", "allow_run_as_root"}:
        yield f"exec {shlex.join(write(replace(plan.request, hosts=(), hostfile=None)))}"
    elif uneven:
        yield "# One line for each rank: Slurm would deal the ranks out evenly."
        yield "SLURM_HOSTFILE=$(mktemp) && export SLURM_HOSTFILE"
        yield f"printf '%s\\n' {shlex.join(row.host for row in plan.rows)} >\"$SLURM_HOSTFILE\""
        yield f"exec srun --distribution=arbitrary {shlex.join(plan.request.program)}"
    else:
        yield f"exec srun {shlex.join(plan.request.program)}"


def _variables(plan: Plan) -> Iterator[str]:
    """Give the `-x NAME=V` of the user; Slurm passes on by itself what is exported where sbatch is called."""
    for text in plan.task.spec.mpi.x:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):  # bash would run what stands in it
            raise SpecError(f"-x {text}: {name!r} is no name of a variable; expected NAME or NAME=VALUE")
        if equals:
            yield f"export {name}={shlex.quote(value)}"


def _job_name(target: str) -> str:
    """Return the target's name as a directive and a file's name can hold it: sbatch refuses one with a space."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", target.rpartition("/")[2])
