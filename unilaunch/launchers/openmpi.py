"""Open MPI 4 (orterun) and 5 (prterun)."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unilaunch.interfaces.world import LauncherInfo, Store
from unilaunch.launchers.ancestry import Daemon
from unilaunch.launchers.launcher import Launcher
from unilaunch.overriding import override
from unilaunch.record import replace

if TYPE_CHECKING:
    from unilaunch.launchers.mpirun import Mpirun

RANK = "OMPI_COMM_WORLD_RANK"  # "3"
SIZE = "OMPI_COMM_WORLD_SIZE"  # "8"
LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"  # "1"; OMPI_COMM_WORLD_NODE_RANK is no node index, and is not read
LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"  # "4"
NAMESPACE = "PMIX_NAMESPACE"  # 4: "2937913345"; 5: "prterun-node0-1234@1"
VERSION = "OMPI_VERSION"  # 5 only: "5.0.11"
DAEMON = "PRTE_LAUNCHED"  # 5 only: "1"
NEEDED = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)
_TRANSPORT = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl")
_NETWORKS = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude")
#: The first and the last port that the kernel chooses, for both IP versions.
_KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Where the kernel shows a network device that libfabric drives: InfiniBand, RoCE and EFA; Slingshot; Omni-Path.
_FABRICS = ("sys/class/infiniband/*", "sys/class/cxi/*", "dev/hfi1*")
#: A line of a file of MCA parameters that chooses a transport, and one that chooses ports.
_CHOICE = re.compile(r"^\s*(pml|btl|mtl)\s*=", re.MULTILINE)
_CHOICE_OF_PORTS = re.compile(r"^\s*btl_tcp_port_", re.MULTILINE)

#: The part of --output's value that names files: "tag,file=PATH:raw".
_OUTPUT = re.compile(r"(?:^|,)(dir|directory|file|filename)=([^,:]+)")


class OpenMpi(Launcher):
    """Open MPI's mpirun."""

    title = "Open MPI"
    order = 10
    prefixes = ("OMPI_",)
    programs = ("mpirun", "orterun", "orted", "prterun", "prted")
    libraries = ("libmpi.so.40",)
    startable = "Open MPI 4 or later"

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read Open MPI's variables; None when this process was not started by its mpirun."""
        if not any(name in environ for name in NEEDED):
            return None
        five = VERSION in environ or DAEMON in environ
        found = self.describe(
            environ, NEEDED, (NAMESPACE, VERSION, DAEMON), launcher=f"{self.title} {5 if five else 4}",
            run_id=f"openmpi-{environ.get(NAMESPACE, 'unknown')}", wake=not five,
        )  # fmt: skip
        return replace(found, store=_store(found, five=five))

    @override
    def mpi_variables(self, info: LauncherInfo, daemon: Daemon | None, environ: Mapping[str, str]) -> dict[str, str]:
        """Return also which transport MPI is to use, unless the user chose one.

        On one host it is shared memory, and TCP over the loopback interface for processes that a rank spawns: they are
        another world, whose memory Open MPI 5 does not share. On several hosts that have several interfaces it is TCP
        over those by which mpirun itself reaches the other hosts. Its ports are those from which the kernel chooses: an
        administrator can limit these to what a firewall opens, and Open MPI itself would take any from 1024 on. Open
        MPI 5 sleeps for a second where its transport for libfabric finds no device (5.0.11,
        `mca_btl_ofi_component_close`), so it is left out where there is none.
        """
        chosen, five = super().mpi_variables(info, daemon, environ), info.launcher.endswith("5")
        has_choice = _has_any(_TRANSPORT, environ) or _chooses(_own_file(environ))
        if info.local_size == info.size:
            if has_choice:
                return chosen
            chosen |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}  # vader: also an alias of 5's sm
            if not _has_any(_NETWORKS, environ):
                chosen[_NETWORKS[0]] = "lo"
            return chosen | ({"OMPI_MCA_mtl": "^ofi"} if five else {})
        if five and daemon and not (has_choice or has_fabric() or any(map(_chooses, _installed_files(daemon)))):
            chosen["OMPI_MCA_btl"] = "^ofi"
        if daemon and not _has_any(_NETWORKS, environ) and (interfaces := routable_interfaces(daemon)):
            chosen[_NETWORKS[0]] = ",".join(interfaces)
        return _ports(environ, daemon) | chosen

    @override
    def hidden_output(self, environ: Mapping[str, str], line: Sequence[str]) -> str:
        """Return the files that --output-filename, or --output with dir= or file=, names to Open MPI 5.

        Open MPI 5 then shows no output, not even with --output :raw (5.0.11). Open MPI 4 does.
        """
        if DAEMON not in environ:
            return ""
        job, files = environ.get(NAMESPACE, "*"), ""
        for word, following in zip(line, [*line[1:], ""], strict=True):
            option, equals, value = word.lstrip("-").partition("=")
            value = value if equals else following
            if option == "output-filename":
                files = f"{value.partition(':')[0]}.{job}.*"
            elif option == "output" and (named := _OUTPUT.search(value)):
                files = f"{named[2]}/{job}/*" if named[1].startswith("d") else f"{named[2]}.{job}.*"
        return files

    @override
    def recognise(self, path: Path, said: str) -> "Mpirun | None":
        """Recognise this mpirun by its version, in the module that writes its command line."""
        from unilaunch.launchers.openmpi_mpirun import recognise

        return recognise(path, said)

    @override
    def assume(self) -> "Mpirun | None":
        """Assume version 5."""
        from unilaunch.launchers.openmpi_mpirun import OpenMpirun

        return OpenMpirun(Path("mpirun"), self.title, (5, 0))


def routable_interfaces(daemon: Daemon) -> list[str]:
    """Return the interfaces that connect *daemon* with other hosts; empty if this host has no other interfaces.

    A second interface that leads nowhere (docker0, a management network) makes Open MPI hang or abort: it takes every
    interface to be connected with every host's.
    """
    import psutil

    from unilaunch.machine.addresses import interface_addresses, is_loopback, plain

    own = [(name, address) for name, address in interface_addresses() if not is_loopback(address)]
    try:
        connections = psutil.Process(daemon.pid).net_connections("tcp")
    except psutil.Error:
        return []
    used = {plain(connection.laddr.ip) for connection in connections if connection.status == psutil.CONN_ESTABLISHED}
    connected = {name for name, address in own if address in used}
    return sorted(connected) if {name for name, _ in own} > connected else []


def has_fabric(root: Path = Path("/")) -> bool:
    """Return whether this host has a network device that libfabric drives."""
    return any(True for pattern in _FABRICS for _ in root.glob(pattern))


def _has_any(names: Sequence[str], environ: Mapping[str, str]) -> bool:
    return any(name in environ for name in names)


def _own_file(environ: Mapping[str, str]) -> Path:
    """Return where the user may have a file of MCA parameters."""
    return Path(environ.get("HOME", "/"), ".openmpi/mca-params.conf")


def _installed_files(daemon: Daemon, root: Path = Path("/")) -> list[Path]:
    """Return where the installation of *daemon* may have its file of MCA parameters."""
    name, prefix = "openmpi-mca-params.conf", daemon.program.parents[1]
    # A distribution's package has it in /etc/openmpi (Debian) or in /etc/openmpi-x86_64 (Fedora).
    packaged = (root / "etc").glob(f"openmpi*/{name}") if prefix.is_relative_to(root / "usr") else ()
    return [prefix / "etc" / name, *packaged]


def _chooses(file: Path, choice: re.Pattern[str] = _CHOICE) -> bool:
    """Return whether a file of MCA parameters chooses a transport, or what else *choice* finds."""
    with suppress(OSError):
        return bool(choice.search(file.read_text(errors="replace")))
    return False


def _ports(environ: Mapping[str, str], daemon: Daemon | None) -> dict[str, str]:
    """Return the parameters with which TCP uses the kernel's range of ports, unless the user chose one."""
    files = [_own_file(environ), *(_installed_files(daemon) if daemon else ())]
    if any(name.startswith("OMPI_MCA_btl_tcp_port_") for name in environ):
        return {}
    if any(_chooses(file, _CHOICE_OF_PORTS) for file in files):
        return {}
    with suppress(OSError, ValueError):  # a sandbox may not show it
        first, last = map(int, _KERNELS_PORTS.read_text(encoding="ascii").split())
        chosen = {"min": first, "range": last - first + 1}
        return {f"OMPI_MCA_btl_tcp_port_{name}_v{ip}": str(value) for name, value in chosen.items() for ip in (4, 6)}
    return {}


def _store(found: LauncherInfo, *, five: bool) -> Store:
    """Return where the ranks can meet before MPI is initialised.

    The store of Open MPI 5 (PMIx) supports no second client in a rank (5.0.11): sometimes MPI_Init finds no route to
    the other ranks, or waits for ever. On several hosts, which may share no folder, the ranks meet through MPI.
    """
    if not five:
        return Store.PMIX
    return Store.FILE if found.local_size == found.size else Store.MPI
