"""Which start a job gets: `launch` starts the ranks of this host itself, unless something asks for an mpirun."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unilaunch.errors import LauncherError, SpecError
from unilaunch.job.direct import direct_start
from unilaunch.job.find import find_mpirun
from unilaunch.launchers import slurm
from unilaunch.launchers.mpirun import Mpirun
from unilaunch.machine.addresses import own_names
from unilaunch.machine.devices import visible_devices
from unilaunch.spec.hostfile import Host
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.mpi_programs import LIBRARIES, find_import
from unilaunch.spec.task import Task

#: Options that only an mpirun can apply.
_OF_MPIRUN = ("mpirun", "prefix", "map_by", "rank_by", "mca", "mpi_args")
#: Packages whose data path is faster over MPI.
_GRAPHS = frozenset({"unilaunch_graph"})


@dataclass(frozen=True)
class _Need:
    """Why a job gets an mpirun.

    Attributes:
        text: The reason, for a message.
        forces: Whether the ranks cannot be started directly at all.
        if_there: Whether they are started directly where there is no mpirun.
    """

    text: str
    forces: bool = False
    if_there: bool = False


def choose_start(task: Task[LaunchSpec], hosts: Sequence[Host], environ: Mapping[str, str]) -> tuple[Mpirun, str]:
    """Return what starts the ranks, and why.

    Args:
        task: The task of the ranks.
        hosts: The hosts that are named or allocated; empty for this host.
        environ: The process's environment.

    Raises:
        SpecError: The options contradict each other.
        LauncherError: The job needs an mpirun, and there is none.
    """
    spec = task.spec
    if spec.nnodes > 1:
        _check_nodes(spec, hosts)
        return direct_start(spec, mpi=spec.launcher == "direct"), f"the same line on each of {spec.nnodes} nodes"
    need = _need_of_mpirun(task, hosts, environ)
    if spec.launcher == "direct":
        if need and need.forces:
            raise SpecError(f"--launcher direct: {need.text}, and that needs mpirun: leave one of the two out")
        return direct_start(spec, mpi=True), "--launcher direct"
    if spec.launcher == "mpirun":
        return find_mpirun(spec.mpirun, environ), "--launcher mpirun"
    if need is None:
        return direct_start(spec), "one host, and nothing needs mpirun"
    try:
        return find_mpirun(spec.mpirun, environ), need.text
    except LauncherError:
        if need.if_there:
            return direct_start(spec), "one host, and there is no mpirun"
        raise


def needs_no_mpi(task: Task[LaunchSpec]) -> bool:
    """Return whether the ranks can be started directly on each node of a job, as far as the program's source tells.

    Args:
        task: The task of the ranks. If its file is not here, nothing is known of it.
    """
    target, spec = task.target, task.spec
    if task.model or (target.file and not target.file.is_file()):
        return False
    on_devices = frozenset({"mindspore"}) if spec.device != "cpu" else frozenset[str]()
    folder = Path(spec.cwd) if spec.cwd else None
    return find_import(target, LIBRARIES | _GRAPHS | on_devices, folder) is None


def _check_nodes(spec: LaunchSpec, hosts: Sequence[Host]) -> None:
    typed = f"--nnodes {spec.nnodes}"
    if hosts:
        raise SpecError(f"{typed}: the same line starts the ranks of each node: leave it out, or the hosts")
    if spec.launcher == "mpirun" or (option := _option_of_mpirun(spec)):
        option = "--launcher mpirun" if spec.launcher == "mpirun" else option
        raise SpecError(
            f"{typed}: no mpirun starts the ranks: leave {option} out, or name the hosts by -H or --hostfile"
        )
    if spec.node_rank is not None and spec.node_rank >= spec.nnodes:
        raise SpecError(f"{typed} --node-rank {spec.node_rank}: expected 0 to {spec.nnodes - 1}")
    if spec.elastic:
        raise SpecError(f"{typed} --elastic: a restart waits for a lost node, whose line you type again: leave it out")
    if spec.master_addr is None:
        raise SpecError(
            f"{typed}: where is node 0? Add --master-addr ADDRESS (or --rdzv-endpoint), the same on every node"
        )


def _option_of_mpirun(spec: LaunchSpec) -> str:
    """Return an option that was given and that only an mpirun can apply, as it is typed; "" if there is none."""
    name = next((name for name in _OF_MPIRUN if getattr(spec, name)), "")
    return {"": "", "mpi_args": "--mpi-arg"}.get(name, f"--{name.replace('_', '-')}")


def _need_of_mpirun(task: Task[LaunchSpec], hosts: Sequence[Host], environ: Mapping[str, str]) -> _Need | None:
    spec = task.spec
    here = own_names([host.name for host in hosts]) | {environ.get(slurm.NODE, "")}
    if other := next((host.name for host in hosts if host.name not in here), None):
        return _Need(f"{other} is another host", forces=True)
    if option := _option_of_mpirun(spec):
        return _Need(f"{option} is an option of mpirun", forces=True)
    return _need_of_program(task, environ)


def _need_of_program(task: Task[LaunchSpec], environ: Mapping[str, str]) -> _Need | None:
    spec = task.spec
    if task.model:
        return _Need(f"the ranks of {task.model.name} exchange their data over MPI", if_there=True)
    folder = Path(spec.cwd) if spec.cwd else None
    if library := find_import(task.target, LIBRARIES, folder):
        return _Need(f"{task.target} imports {library}")
    if find_import(task.target, _GRAPHS, folder):
        return _Need(f"{task.target} exchanges rows of a graph over MPI", if_there=True)
    seen = any(visible_devices(environ).values())
    if seen and spec.device != "cpu" and find_import(task.target, frozenset({"mindspore"}), folder):
        return _Need("MindSpore on a device finds its ranks through Open MPI", if_there=True)
    return None
