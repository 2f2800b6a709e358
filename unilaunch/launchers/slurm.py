"""Slurm: a task of srun. (An sbatch script has no step, and salloc's shell has a special one: neither is a task.)"""

import re
from collections.abc import Mapping
from contextlib import suppress

from unilaunch.errors import SpecError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher, is_number
from unilaunch.overriding import override
from unilaunch.record import replace

RANK = "SLURM_PROCID"
SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
STEP = "SLURM_STEP_ID"  # "0"
LAST_STEP = 0xFFFFFFEF  # higher numbers are Slurm's special steps: the batch script, salloc's interactive shell
JOB = "SLURM_JOB_ID"
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
NODE_RANK = "SLURM_NODEID"
STEP_NODES = "SLURM_STEP_NUM_NODES"  # "1"; of a heterogeneous step those of one component
COMPONENTS = "SLURM_HET_SIZE"
LAUNCH_NODE = "SLURM_LAUNCH_NODE_IPADDR"
OVERLAP = "SLURM_OVERLAP"  # as srun --overlap
DISTRIBUTION = "SLURM_DISTRIBUTION"
ARBITRARY = "arbitrary"  # a file maps tasks to hosts; no variable has its content
#: With one of these srun has wired MPI up (--mpi=pmix, --mpi=pmi2).
NAMESPACE = "PMIX_NAMESPACE"  # "slurm.pmix.7.0"
OWN_SPACE = "slurm."  # otherwise the step is another launcher's: mpirun and prterun start their daemons through srun
WIRED = (NAMESPACE, "PMI_FD", "PMI_RANK")
_PORTS = 10_000  # number of ports, of which each job takes one; and the first of them
_RANGES = re.compile(r"\[(\d+)[^\]]*\]")


class Slurm(Launcher):
    """srun."""

    title = "Slurm"
    order = 90
    prefixes = ("SLURM_", "SLURMD_")
    sizes = (SIZES[0],)  # SLURM_NTASKS is not here: an sbatch script has it and is no task
    programs = ("slurmstepd", "srun")
    without_mpi = "load the cluster's MPI module, or do without MPI: srun --mpi=none, or export SLURM_MPI_TYPE=none"

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read Slurm's variables; None when this process is not a task of srun.

        The local rank is left to the ranks: several of Slurm's nodes can be one machine. A step of one task gives no
        run id: it may be a shell (srun --pty bash) in which a user starts several runs, and they need different ids.
        """
        if not is_step(environ):
            return None
        size = next((name for name in SIZES if name in environ), SIZES[0])
        nodes = next((name for name in NODES if name in environ), NODES[0])
        found = self.describe(
            environ, (RANK, size), (STEP, JOB, nodes, *WIRED),
            mpi=any(name in environ for name in WIRED) and environ.get(NAMESPACE, OWN_SPACE).startswith(OWN_SPACE),
            patient=True,  # KillWait, 30 seconds by default, or the partition's GraceTime
            single_host=environ.get(STEP_NODES) == "1" and COMPONENTS not in environ,
            rank_0_hosts=[*_hosts_of_task_0(environ, nodes), environ.get(LAUNCH_NODE, "")],
        )  # fmt: skip
        return replace(found, run_id=f"slurm-{environ.get(JOB, 'unknown')}.{environ[STEP]}" if found.size > 1 else "")

    @override
    def nodes(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Read the variables of a step that has one task on each node; a batch script runs on one node alone."""
        if environ.get(SIZES[0]) != environ.get(STEP_NODES) or not is_step(environ):
            return {}
        # A batch script starts the step on node 0 itself, whose name may have no address.
        addresses = first_host(environ.get(NODES[0], "")), environ.get(LAUNCH_NODE)
        fields = {"nnodes": environ.get(STEP_NODES), "node_rank": environ.get(NODE_RANK)}
        fields["master_addr"] = ",".join(filter(None, addresses))
        if (job := environ.get(JOB, "")).isdecimal():
            fields["master_port"] = str(_PORTS + int(job) % _PORTS)  # two jobs may share a node
        return {field: value for field, value in fields.items() if value}

    @override
    def mpirun_variables(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Mpirun starts its daemons by an srun, which would wait for ever for the processors that this step holds."""
        return {OVERLAP: "1"} if is_step(environ) and OVERLAP not in environ else {}


def is_step(environ: Mapping[str, str]) -> bool:
    """Return whether this process belongs to a step that srun has started."""
    return STEP in environ and not (is_number(environ[STEP], 10) and int(environ[STEP]) > LAST_STEP)


def _nodes(nodelist: str) -> list[str]:
    """Return the names of "n[01-03,7],gpu5"; empty if it is not a list of nodes."""
    from unilaunch.spec.hostfile import parse_hosts

    with suppress(SpecError):
        return [host.name for host in parse_hosts(nodelist)]
    return []


def _hosts_of_task_0(environ: Mapping[str, str], nodes: str) -> list[str]:
    """Return the hosts that task 0 may be on: the first one, or any of them under an arbitrary distribution."""
    nodelist = environ.get(nodes, "")
    if environ.get(DISTRIBUTION) == ARBITRARY:
        return _nodes(nodelist) or [first_host(nodelist)]
    return [first_host(nodelist)]


def first_host(nodelist: str) -> str:
    """Return the first host of "n[01-03,7],gpu5"; it has task 0."""
    return _RANGES.sub(r"\1", nodelist).partition(",")[0]
