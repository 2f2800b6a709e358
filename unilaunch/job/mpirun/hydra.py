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
    options = [
        *(["-bind-to", mpi.bind_to] if mpi.bind_to else []),
        *[word for text in mpi.x for word in _variable(text, request)],
        *(["-l"] if mpi.tag_output else []),
        *mpi.args,
    ]
    if request.mpirun.launcher == "Intel MPI" and request.hosts:
        return [str(request.mpirun.path), *options, *_host_by_host(request)]
    hosts = ",".join(host.name + ("" if host.slots is None else f":{host.slots}") for host in request.hosts)
    where = ["-hosts", hosts] if hosts else []
    return [str(request.mpirun.path), *where, "-n", str(request.nprocs), *options, *request.program]


def _host_by_host(request: Request) -> list[str]:
    """Return the hosts as argument sets: Intel MPI's -hosts knows no slots, it fills each host's cores."""
    words: list[str] = []
    left = request.nprocs
    for host in request.hosts:
        number = left if host.slots is None else min(left, host.slots)
        if number:
            words += [*([":"] if words else []), "-host", host.name, "-n", str(number), *request.program]
        left -= number
    return words


def _variable(text: str, request: Request) -> list[str]:
    """Return the words for one `-x NAME[=V]`; what the launching host has exported, Hydra passes on by itself."""
    name, equals, value = text.partition("=")
    return ["-genv", name, value if equals else request.environ.get(name, "")]
