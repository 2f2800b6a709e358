"""The command line of Open MPI 4 and 5."""

import math
from collections.abc import Mapping

from unilaunch.errors import LauncherError
from unilaunch.job.hostfile import RANKFILE, Host
from unilaunch.job.mpirun.request import Request
from unilaunch.launch_spec import MpiSpec

#: From here on the runtime is PRRTE, not ORTE.
FIVE = 5
_MCA_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")


def write(request: Request) -> list[str]:
    """Return the command line.

    Raises:
        LauncherError: Open MPI would refuse it.
    """
    mpi, version = request.mpi, request.mpirun.version[0]
    _check_addresses(request, version)
    return [
        str(request.mpirun.path),
        *(["--allow-run-as-root"] if mpi.allow_run_as_root else []),
        *(["--prefix", str(mpi.prefix)] if mpi.prefix else []),
        *["-n", str(request.nprocs)],
        *_hosts(request),
        *_mapping(request, version),
        *(["--bind-to", mpi.bind_to] if mpi.bind_to else _unbound(request, version)),
        *(["--rank-by", mpi.rank_by] if mpi.rank_by else []),
        *_parameters(request, version),
        *[word for text in mpi.x for word in ("-x", text)],
        *[word for name in request.forwarded() for word in ("-x", name)],
        *_output(request, version),
        *mpi.args,
        *request.program,
    ]


def keepalive(host_timeout: float) -> dict[str, str]:
    """Return the parameters with which Open MPI's daemons count a host as lost after *host_timeout* seconds.

    Its own values make it hours. A probe goes out each second, and one answer is enough. The agents' connections break
    a second earlier (`monitor.connection.notice_silence`), so that unilaunch names the lost host first.
    """
    return {
        "oob_tcp_keepalive_time": "1",
        "oob_tcp_keepalive_intvl": "1",
        "oob_tcp_keepalive_probes": str(math.ceil(host_timeout) - 1),
    }


def session(version: int, mpi: MpiSpec, environ: Mapping[str, str], folder: str) -> list[str]:
    """Return the options with which mpirun keeps its files on this host in *folder*.

    By itself it takes a name with its process number in the common temporary folder. Where an mpirun of that number was
    killed once and left its files, Open MPI 5 does not start: "The PMIx server's listener thread failed to start".
    """
    own = _named(mpi, environ) & {"prte_tmpdir_base", "prte_local_tmpdir_base"}
    told = any("tmpdir_base" in word for word in mpi.args)
    return ["--prtemca", "prte_local_tmpdir_base", folder] if version >= FIVE and not own and not told else []


def unbuffered(version: int, mpi: MpiSpec) -> list[str]:
    """Return the option with which Open MPI 5 shows what ends no line: a question, a progress bar.

    The agents send whole lines all the same. With options that name or tag the output it shows nothing, or mixes it.
    """
    told = mpi.output_filename or mpi.tag_output or "--output" in mpi.args
    return ["--output", ":raw"] if version >= FIVE and not told else []


def check_root(request: Request, user: int) -> None:
    """Refuse what mpirun would refuse: root without its leave.

    Raises:
        LauncherError: Nobody allowed it.
    """
    leave = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    allowed = all(request.environ.get(name) == "1" for name in leave)
    if user == 0 and not allowed and not request.mpi.allow_run_as_root:
        raise LauncherError("mpirun does not run as root unasked: add --allow-run-as-root, or be another user")


def _check_addresses(request: Request, version: int) -> None:
    """Refuse hosts that are given as IPv6 addresses where Open MPI cannot read them.

    4.1's daemons crash ("illegal character in the following node name"); 5.0 takes "[fd00" of -H for a host's name.
    """
    read = version >= FIVE and request.hostfile
    if request.several and not read and (named := [host.name for host in request.hosts if ":" in host.name]):
        where = " in -H: write a --hostfile (fd00::1 slots=4), or" if version >= FIVE else ":"
        raise LauncherError(
            f"{named[0]}: Open MPI {version} takes no IPv6 address{where} give the host a name (/etc/hosts)"
        )


def _hosts(request: Request) -> list[str]:
    if request.hostfile:
        return ["--hostfile", request.hostfile]
    return ["-H", ",".join(map(_entry, request.hosts))] if request.hosts else []


def _entry(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else host.name
    user = f"{host.user}@" if host.user else ""
    return f"{user}{name}" + ("" if host.slots is None else f":{host.slots}")


def _mapping(request: Request, version: int) -> list[str]:
    mpi = request.mpi
    if version < FIVE and mpi.map_by and mpi.map_by.lower().startswith(RANKFILE):
        return ["--rankfile", mpi.map_by[len(RANKFILE) :], *(["--oversubscribe"] if mpi.oversubscribe else [])]
    if not mpi.oversubscribe:
        return ["--map-by", mpi.map_by] if mpi.map_by else []
    if version >= FIVE and mpi.map_by:  # 5 takes one of the two
        return ["--map-by", f"{mpi.map_by}:OVERSUBSCRIBE"]
    return [*(["--map-by", mpi.map_by] if mpi.map_by else []), "--oversubscribe"]


def _unbound(request: Request, version: int) -> list[str]:
    """More ranks than cores: 4 leaves them unbound, and 5 refuses to start them unless it is told to."""
    return ["--bind-to", "none"] if version >= FIVE and request.more_than_cores and request.hosts else []


def _parameters(request: Request, version: int) -> list[str]:
    words = []
    for name, value in request.mpi.mca:
        if version >= FIVE and name == "orte_abort_on_non_zero_status":
            words += ["--runtime-options", f"error-nonzero-status={value}"]
        else:
            words += ["--mca", name, value]
    named = _named(request.mpi, request.environ)
    if request.several:
        kept = keepalive(request.host_timeout).items()
        words += [word for name, value in kept if name not in named for word in ("--mca", name, value)]
    return words


def _named(mpi: MpiSpec, environ: Mapping[str, str]) -> set[str]:
    """Return the MCA parameters that the user has set."""
    of_variables = {name[len(prefix) :] for name in environ for prefix in _MCA_PREFIXES if name.startswith(prefix)}
    return of_variables | {name for name, _ in mpi.mca}


def _output(request: Request, version: int) -> list[str]:
    mpi = request.mpi
    words = []
    if mpi.output_filename:
        path, _, qualifiers = mpi.output_filename.partition(":")
        kept = [word for word in qualifiers.split(",") if word and not (version >= FIVE and word == "nojobid")]
        words += ["--output-filename", ":".join([path, *([",".join(kept)] if kept else [])])]
    words += ["--merge-stderr-to-stdout"] if mpi.merge_stderr_to_stdout else []
    return words + (["--tag-output"] if mpi.tag_output else [])
