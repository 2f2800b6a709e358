"""A batch script for Slurm."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from unilaunch.job.emit.spec_line import spec_json
from unilaunch.job.plan import Plan, write


def lines(plan: Plan) -> Iterator[str]:
    """Give the script's lines.

    srun starts the ranks: unilaunch reads Slurm's own environment. If the user gave options of mpirun, mpirun does, on
    the hosts that Slurm has allocated.
    """
    hosts = Counter(row.host for row in plan.rows)
    named = plan.several and "?" not in hosts
    uneven = named and len(set(hosts.values())) > 1
    yield "#!/bin/bash"
    yield "# Written by unilaunch launch --emit sbatch; submit it with sbatch. Its spec, as --config reads it:"
    yield f"# {spec_json(plan)}"
    yield f"#SBATCH --job-name=unilaunch-{plan.task.target.name.rpartition('/')[2]}"
    yield f"#SBATCH --ntasks={len(plan.rows)}"
    if named:
        yield f"#SBATCH --nodes={len(hosts)}"
        yield f"#SBATCH --nodelist={','.join(hosts)}"
    elif not plan.several:
        yield "#SBATCH --nodes=1"
    if named and not uneven:
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
        if equals:
            yield f"export {name}={shlex.quote(value)}"
