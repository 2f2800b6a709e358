"""mpirun of Open MPI 4 and 5: its command line, and its defaults."""

import math
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from unilaunch.errors import LauncherError
from unilaunch.launchers.mpirun import Mpirun, Request
from unilaunch.machine.limits import probes
from unilaunch.overriding import override
from unilaunch.spec.hostfile import RANKFILE, is_open_mpi_grammar
from unilaunch.spec.launch_spec import MpiSpec

_OLDEST, _FIVE = 4, 5  # from 5 on the runtime is PRRTE, not ORTE
_VERSION = re.compile(r"\(Open MPI\) (\d+)\.(\d+)")
_LOGINS = ("plm_ssh_agent", "plm_rsh_agent")  # from 5 on, and before
_LOGIN_OPTIONS = ("plm_ssh_args", "plm_rsh_args")
_FOLDER_OF_FIVE = ("--prtemca", "prte_local_tmpdir_base")
#: Not orte_local_tmpdir_base: mpirun itself gives its ranks orte_tmpdir_base, and ranks that find both end.
_FOLDER_OF_FOUR = ("--mca", "orte_tmpdir_base")
#: Parameters of tutorials for GPUs.
_OF_CUDA = ("opal_cuda_support", "mpi_cuda_support")
#: Most ranks that are bound to a core each by default; more are bound to a package or a NUMA domain.
_BOUND_TO_CORES = 2
_BINDING_PARAMETERS = {
    "hwloc_base_binding_policy", "hwloc_default_binding_policy", "hwloc_base_cpu_list", "hwloc_default_cpu_list",
    "rmaps_base_mapping_policy", "rmaps_default_mapping_policy",
}  # fmt: skip
_BINDING_OPTIONS = {"--bind-to", "--map-by", "--cpu-list", "--cpu-set"}
_MCA_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")


class OpenMpirun(Mpirun):
    """Open MPI's mpirun."""

    counts_cores = True
    operator_name = "OpenMPI"

    @property
    @override
    def begins_here(self) -> bool:
        return self.version[0] < _FIVE

    @property
    @override
    def fills_the_first_host(self) -> bool:
        return self.version[0] >= _FIVE

    @override
    def reads(self, hostfile: Path) -> bool:
        return is_open_mpi_grammar(hostfile)

    @override
    def unusable(self, parameters: Collection[str]) -> dict[str, str]:
        named = [name for name in parameters if name in _OF_CUDA]
        if not named or _is_built_with_cuda(self.path):
            return {}
        return dict.fromkeys(named, "this Open MPI was built without CUDA, and its ranks would crash with it")

    @override
    def check(self, request: Request, user: int) -> None:
        """Refuse to start as root unless it is allowed, and an input for other ranks."""
        if "--stdin" in request.options.mpi_args:
            raise LauncherError(
                "--mpi-arg --stdin: launch itself brings its input to rank 0, and to no other rank: leave that option "
                "out, and let the ranks open a file"
            )
        permissions = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        allowed = all(request.environ.get(name) == "1" for name in permissions)
        if user == 0 and not allowed and not request.options.allow_run_as_root:
            raise LauncherError(
                "mpirun does not run as root by default: in a container set UNILAUNCH_ALLOW_RUN_AS_ROOT=1; or add "
                "--allow-run-as-root, or be another user"
            )

    @override
    def login_command(self, request: Request) -> list[str]:
        """Return the user's ssh command if one is set (`--mca plm_rsh_agent "ssh -p 2222"`)."""
        chosen = _named(request.options, request.environ)
        if "plm" in chosen or any("plm" in word for word in request.options.mpi_args):
            return []
        agent = next((chosen[name] for name in _LOGINS if name in chosen), "ssh").partition(":")[0].split()
        return agent if super().login_command(request) and agent and Path(agent[0]).name == "ssh" else []

    @override
    def write(self, request: Request) -> list[str]:
        mpi, version = request.options, self.version[0]
        _check_addresses(request, version)
        return [
            str(self.path),
            *(["--allow-run-as-root"] if mpi.allow_run_as_root else []),
            *(["--prefix", str(mpi.prefix)] if mpi.prefix else []),
            *(["--wdir", str(mpi.cwd.absolute())] if mpi.cwd else []),
            *["-n", str(request.nprocs)],
            *_hosts(request),
            *_mapping(request, version),
            *_binding(request, version),
            *_parameters(request, version),
            *[word for text in mpi.export for word in ("-x", text)],
            *[word for name in request.forwarded() for word in ("-x", name)],
            *mpi.mpi_args,
            *request.program,
        ]

    @override
    def start_line(self, request: Request, told: Sequence[str], session: str) -> list[str]:
        """Return the line with the variables for other hosts, or with a folder for mpirun's files on this host.

        By itself mpirun takes one in the common temporary folder. Open MPI 5 names it by its process number; where an
        mpirun of that number was killed once, it does not start: "The PMIx server's listener thread failed to start".
        Open MPI 4 shares one with the user's other jobs; where another job ends and removes it at the wrong moment:
        "orte_session_dir failed". On several hosts a daemon elsewhere would leave the session's folder there.

        The input does not go through mpirun: Open MPI 5 passes on no end of it (ompi issue 11990), and to another host
        only its first piece (prrte issue 2579).
        """
        words = [word for name in told for word in ("-x", name)] if request.several else []
        words += self._limits_of_logins(request)
        if session and not request.several and not _chooses_folder(request):
            words = [*(_FOLDER_OF_FIVE if self.version[0] >= _FIVE else _FOLDER_OF_FOUR), session]
        words += ["--stdin", "none"]
        mpirun, *line = self.write(request)
        return [mpirun, *_unbuffered(request, self.version[0]), *words, *line]

    def _limits_of_logins(self, request: Request) -> list[str]:
        """Return the option with which ssh gives up a host that is lost while mpirun logs in to it.

        By itself ssh waits for hours. It also runs as long as the job: there unilaunch must notice a lost host first,
        and a shorter silence must end nothing. So ssh waits for four host timeouts: one until it asks the host, and
        three (ServerAliveCountMax) for an answer.
        """
        named = _named(request.options, request.environ)
        if not (request.several and self.login_command(request)) or any(name in named for name in _LOGIN_OPTIONS):
            return []
        seconds = math.ceil(request.host_timeout)
        # With "=", Open MPI 5 would give other hosts, which log in to further ones, a part of the text.
        options = f"-oConnectTimeout\t{4 * seconds} -oServerAliveInterval\t{seconds}"
        return ["--mca", _LOGIN_OPTIONS[self.version[0] < _FIVE], options]


def recognise(path: Path, said: str) -> OpenMpirun | None:
    """Return the mpirun at *path* if *said*, its version, is Open MPI's.

    Raises:
        LauncherError: It is too old.
    """
    found = _VERSION.search(said)
    if not found:
        return None
    version = int(found[1]), int(found[2])
    if version[0] < _OLDEST:
        raise LauncherError(f"{path} is Open MPI {found[1]}.{found[2]}: Open MPI 4 or later is needed")
    return OpenMpirun(path, "Open MPI", version)


@cache
def _is_built_with_cuda(mpirun: Path) -> bool:
    """Return whether the ompi_info beside mpirun reports CUDA; False if there is no ompi_info."""
    line = [str(mpirun.with_name("ompi_info")), "--parsable", "--all"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "built_with_cuda_support:value:true" in done.stdout


def keepalive(host_timeout: float) -> dict[str, str]:
    """Return the parameters with which Open MPI's daemons count a host as lost a second after *host_timeout*.

    With the defaults it takes hours. One answer to a probe is enough. The agents' connections break at
    *host_timeout* (`monitor.connection.notice_silence`), so that unilaunch names the lost host first.
    """
    pause, number = probes(host_timeout)
    return {
        "oob_tcp_keepalive_time": "1",
        "oob_tcp_keepalive_intvl": str(pause),
        "oob_tcp_keepalive_probes": str(number),
    }


def _chooses_folder(request: Request) -> bool:
    words = [*_named(request.options, request.environ), *request.options.mpi_args]
    return any("tmpdir_base" in word for word in words)


def _unbuffered(request: Request, version: int) -> list[str]:
    """Return the option with which Open MPI 5 shows incomplete lines: a question, a progress bar.

    The agents send whole lines all the same. With options that name or tag the output it shows nothing, or mixes it.
    """
    mpi = request.options
    named = {"--output", "--output-filename"} & set(mpi.mpi_args)
    return ["--output", ":raw"] if version >= _FIVE and not named else []


def _check_addresses(request: Request, version: int) -> None:
    """Refuse hosts that are given as IPv6 addresses where Open MPI cannot read them.

    4.1's daemons crash ("illegal character in the following node name"); 5.0 reads "[fd00" of -H as a host's name.
    """
    read = version >= _FIVE and request.hostfile
    if request.several and not read and (named := [host.name for host in request.hosts if ":" in host.name]):
        where = " in -H: write a --hostfile (fd00::1 slots=4), or" if version >= _FIVE else ":"
        raise LauncherError(
            f"{named[0]}: Open MPI {version} takes no IPv6 address{where} give the host a name (/etc/hosts)"
        )


def _hosts(request: Request) -> list[str]:
    if request.hostfile:
        return ["--hostfile", request.hostfile]
    return ["-H", ",".join(host.entry for host in request.hosts)] if request.hosts else []


def _mapping(request: Request, version: int) -> list[str]:
    mpi = request.options
    if version < _FIVE and mpi.map_by and mpi.map_by.lower().startswith(RANKFILE):
        return ["--rankfile", mpi.map_by[len(RANKFILE) :], *(["--oversubscribe"] if mpi.oversubscribe else [])]
    if not mpi.oversubscribe:
        return ["--map-by", mpi.map_by] if mpi.map_by else []
    if version >= _FIVE and mpi.map_by:  # 5 takes one of the two
        return ["--map-by", f"{mpi.map_by}:OVERSUBSCRIBE"]
    return [*(["--map-by", mpi.map_by] if mpi.map_by else []), "--oversubscribe"]


def _binding(request: Request, version: int) -> list[str]:
    """Return the user's binding; or none, where Open MPI's own would be too narrow.

    Open MPI binds one or two ranks to a core each, on any host: all threads and data loaders of a rank would share it.
    More ranks than cores are not bound by 4, and must be unbound for 5. (`slot:PE=4` would give each rank cores of its
    own; but 5 does not start where these are in two packages.)
    """
    if request.options.bind_to:
        return ["--bind-to", request.options.bind_to]
    narrow = request.nprocs <= _BOUND_TO_CORES and request.cores_each != 1 and not _chooses_binding(request)
    crowded = version >= _FIVE and request.cores_each == 0 and (request.hosts or request.several)
    return ["--bind-to", "none"] if narrow or crowded else []


def _chooses_binding(request: Request) -> bool:
    named = _BINDING_PARAMETERS & set(_named(request.options, request.environ))
    return bool(request.options.map_by or named or _BINDING_OPTIONS & set(request.options.mpi_args))


def _parameters(request: Request, version: int) -> list[str]:
    words = []
    for name, value in request.options.mca:
        if version >= _FIVE and name == "orte_abort_on_non_zero_status":
            words += ["--runtime-options", f"error-nonzero-status={value}"]
        else:
            words += ["--mca", name, value]
    named = _named(request.options, request.environ)
    if request.several:
        kept = keepalive(request.host_timeout).items()
        words += [word for name, value in kept if name not in named for word in ("--mca", name, value)]
    return words


def _named(mpi: MpiSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the MCA parameters that the user has set."""
    of_variables = {
        name[len(prefix) :]: value
        for name, value in environ.items()
        for prefix in _MCA_PREFIXES
        if name.startswith(prefix)
    }
    return of_variables | dict(mpi.mca)
