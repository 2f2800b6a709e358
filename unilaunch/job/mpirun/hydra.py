"""The command line of Hydra: MPICH's and Intel MPI's mpiexec."""

from unilaunch.errors import LauncherError
from unilaunch.job.mpirun.request import Request

#: Options of Open MPI's for which Hydra has no word.
_FOREIGN = ("prefix", "map_by", "rank_by", "mca", "output_filename", "merge_stderr_to_stdout")


def write(request: Request) -> list[str]:
    """Return the command line.

    Raises:
        LauncherError: An option is Open MPI's alone.
    """
    mpi = request.mpi
    foreign = [f"--{name.replace('_', '-')}" for name in _FOREIGN if getattr(mpi, name)]
    if foreign:
        raise LauncherError(f"{', '.join(foreign)}: Open MPI's option, and {request.mpirun.launcher} has none like it")
    hosts = ",".join(host.name + ("" if host.slots is None else f":{host.slots}") for host in request.hosts)
    return [
        str(request.mpirun.path),
        *(["-f", request.hostfile] if request.hostfile else ["-hosts", hosts] if hosts else []),
        *["-n", str(request.nprocs)],
        *(["-bind-to", mpi.bind_to] if mpi.bind_to else []),
        *[word for text in mpi.x for word in _variable(text, request)],
        *(["-l"] if mpi.tag_output else []),
        *mpi.args,
        *request.program,
    ]


def _variable(text: str, request: Request) -> list[str]:
    """Return the words for one `-x NAME[=V]`; what the launching host has exported, Hydra passes on by itself."""
    name, equals, value = text.partition("=")
    return ["-genv", name, value if equals else request.environ.get(name, "")]
