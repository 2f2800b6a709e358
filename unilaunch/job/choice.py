"""What starts the ranks: `launch` itself on this host, unless something asks for an mpirun, which is found here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from unilaunch import launchers
from unilaunch.errors import LauncherError, SpecError
from unilaunch.launchers.allocation import own_name
from unilaunch.launchers.mpirun import Mpirun, Request, Starter
from unilaunch.machine.addresses import own_names
from unilaunch.machine.devices import visible_devices
from unilaunch.overriding import override
from unilaunch.record import Record, field, replace
from unilaunch.spec.hostfile import Host
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.mpi_programs import LIBRARIES, find_import
from unilaunch.spec.run_spec import RunSpec
from unilaunch.spec.task import Machine, Task
from unilaunch.version import __version__

#: The fields of `LaunchSpec` that say how ranks are started. Others may hold secrets, and no rank depends on them.
_OF_THE_START = {"nnodes", "node_rank", "max_restarts", "grace", "cwd", "bind_to"}
#: Packages whose data path is faster over MPI.
_GRAPHS = frozenset({"unilaunch_graph"})


class _Need(Record):
    """Why a job gets an mpirun.

    Attributes:
        text: The reason, for a message.
        forces: Whether the ranks cannot be started directly at all.
        if_there: Whether they are started directly where there is no mpirun.
    """

    text: str
    forces: bool = False
    if_there: bool = False


def choose_start(task: Task[LaunchSpec], hosts: Sequence[Host], environ: Mapping[str, str]) -> tuple[Starter, str]:
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
        return direct_start(spec, allows_mpi=spec.launcher == "direct"), f"the same line on each of {spec.nnodes} nodes"
    need = _need_of_mpirun(task, hosts, environ)
    if spec.launcher == "direct":
        if need and need.forces:
            raise SpecError(f"--launcher direct: {need.text}, and that needs mpirun: leave one of the two out")
        return direct_start(spec, allows_mpi=True), "--launcher direct"
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
    if task.target.file and not task.target.file.is_file():
        return False
    return _need_of_program(task, has_devices=True) is None


def _check_nodes(spec: LaunchSpec, hosts: Sequence[Host]) -> None:
    typed = f"--nnodes {spec.nnodes}"
    if hosts:
        raise SpecError(f"{typed}: the same line starts the ranks of each node: leave it out, or the hosts")
    if option := "--launcher mpirun" if spec.launcher == "mpirun" else ", ".join(spec.options_of_mpirun):
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


def _need_of_mpirun(task: Task[LaunchSpec], hosts: Sequence[Host], environ: Mapping[str, str]) -> _Need | None:
    spec = task.spec
    here = own_names([host.name for host in hosts]) | {own_name(environ)}
    if other := next((host.name for host in hosts if host.name not in here), None):
        return _Need(f"{other} is another host", forces=True)
    if options := spec.options_of_mpirun:
        return _Need(f"{options[0]} is an option of mpirun", forces=True)
    return _need_of_program(task, has_devices=any(visible_devices(environ).values()))


def _need_of_program(task: Task[LaunchSpec], *, has_devices: bool) -> _Need | None:
    spec = task.spec
    if task.model:
        return _Need(f"the ranks of {task.model.name} exchange their data over MPI", if_there=True)
    folder = Path(spec.cwd) if spec.cwd else None
    if library := find_import(task.target, LIBRARIES, folder):
        return _Need(f"{task.target} imports {library}")
    if find_import(task.target, _GRAPHS, folder):
        return _Need(f"{task.target} exchanges rows of a graph over MPI", if_there=True)
    if has_devices and spec.device != "cpu" and find_import(task.target, frozenset({"mindspore"}), folder):
        return _Need("MindSpore on a device finds its ranks through Open MPI", if_there=True)
    return None


class DirectStart(Starter):
    """The start by `launch` itself.

    Attributes:
        allows_mpi: Whether the ranks may import a library that needs MPI: the user has asked for this start.
        fields: What the user has given of `_OF_THE_START`, as JSON.
    """

    allows_mpi: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    @override
    def process(self) -> str:
        return "the agent of this host"

    @override
    def write(self, request: Request) -> list[str]:
        """Return a command line that starts the same job in the same way."""
        export = {"export": list(request.options.export)} if request.options.export else {}
        return launch_line(request.program, {**self.fields, **export, "launcher": "direct", "nprocs": request.nprocs})


def direct_start(spec: LaunchSpec, *, allows_mpi: bool = False) -> DirectStart:
    """Return the start by this Python of what the user wants; *allows_mpi* as in `DirectStart`."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    fields = spec.model_dump(mode="json", include=_OF_THE_START, exclude_defaults=True)
    return DirectStart(Path(sys.executable), "unilaunch", (major, minor), allows_mpi, fields)


def launch_line(program: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
    """Return the command line of a `launch` that starts ranks.

    Args:
        program: The command line of each rank, with its spec.
        fields: The fields of `LaunchSpec` that this spec does not have.
    """
    at = program.index("--spec") + 1
    # A rank's spec leaves out its own default, and `launch` has another one.
    console = RunSpec.model_fields["console"].default
    whole = json.dumps({"console": console, **json.loads(program[at]), **fields})
    return [*program[:3], "launch", "--spec", whole, *program[at + 1 :]]


def find_mpirun(wanted: Path | None, environ: Mapping[str, str]) -> Mpirun:
    """Return the mpirun that starts the job: the named one, else the one in PATH, else the one beside this Python.

    Raises:
        LauncherError: There is none, or it belongs to no launcher that unilaunch can start.
    """
    path = _locate(wanted, environ.get("PATH"))
    said = _ask_version(path)
    for launcher in launchers.known().values():
        if mpirun := launcher.recognise(path, said):
            return mpirun
    first = next(iter(said.splitlines()), "nothing")
    expected = ", ".join(launcher.startable for launcher in launchers.known().values() if launcher.startable)
    raise LauncherError(f"{path} --version says {first!r}: expected {expected}")


def as_of_a_shell(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with PATH and HOME, which a service may lack: Open MPI 4 needs the one, 5 the other."""
    whole = {"PATH": os.defpath, **environ}
    with suppress(RuntimeError):  # this user has no home
        whole = {"HOME": str(Path("~").expanduser()), **whole}
    return whole


@cache
def _ask_version(path: Path) -> str:
    """Return the program's output for --version; it is kept, since a job that is restarted needs it again."""
    try:
        line = [str(path), "--version"]
        environ = as_of_a_shell(os.environ)  # noqa: TID251  (what a user's shell gives it)
        done = subprocess.run(
            line, env=environ, capture_output=True, text=True, errors="replace", check=False, timeout=20
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{path} --version: {error}: is it an mpirun?") from None
    return done.stdout + done.stderr


def foresee_mpirun(wanted: Path | None, environ: Mapping[str, str], machine: Machine) -> Mpirun:
    """Return the mpirun for which a job file is written: the one found here, else the likeliest one on the cluster.

    What is in an image has nothing to do with this machine: there it is the likeliest, unless the user names one.

    Raises:
        LauncherError: There is none here, and no launcher describes the one to expect.
    """
    if machine is Machine.IMAGE and not wanted and (assumed := _assume(None)):
        return assumed
    try:
        return find_mpirun(wanted, environ)
    except LauncherError:
        if assumed := _assume(wanted):
            return assumed
        raise


def _assume(wanted: Path | None) -> Mpirun | None:
    for launcher in launchers.known().values():
        if mpirun := launcher.assume():
            return replace(mpirun, path=wanted or mpirun.path)
    return None


def _locate(wanted: Path | None, search: str | None) -> Path:
    if wanted:
        found = shutil.which(str(wanted), path=search)
        if not found:
            raise LauncherError(f"--mpirun {wanted}: no such program")
        return _below_a_prefix(Path(found).absolute())
    here = str(Path(sys.executable).parent)
    for folder in (search, here):
        for name in ("mpirun", "mpiexec"):
            if found := shutil.which(name, path=folder):
                return _below_a_prefix(Path(found).absolute())
    raise LauncherError(
        f"no mpirun in PATH, and none beside {sys.executable}: pip install 'unilaunch[mpi]', or load your cluster's MPI"
    )


def _below_a_prefix(path: Path) -> Path:
    """Return the path with /usr/bin for /bin: Open MPI 4 takes no / for its prefix."""
    return path.parent.resolve() / path.name if path.parent.parent == Path("/") else path
