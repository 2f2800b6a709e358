"""The launcher's process above this rank: which it is, and over which networks it speaks with the other hosts."""

import os
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

#: Programs of MPI launchers that start ranks.
_PROGRAMS = {"orterun", "orted", "prterun", "prted", "mpirun", "mpiexec.hydra", "hydra_pmi_proxy"}


@dataclass(frozen=True, slots=True)
class Daemon:
    """A launcher's process.

    Attributes:
        pid: Its process number.
        program: Its program, as an absolute path.
    """

    pid: int
    program: Path


def find_daemon() -> Daemon | None:
    """Return the nearest MPI launcher among this process's ancestors; None if it cannot be told."""
    process = os.getppid()
    while process > 1:
        try:
            program = Path(f"/proc/{process}/exe").readlink()
            if program.name in _PROGRAMS:
                return Daemon(process, program)
            process = int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return None


def routable_networks(daemon: Daemon) -> list[str]:
    """Return the IPv4 networks over which *daemon* is connected with other hosts, if this host has others besides.

    A second interface that leads nowhere (docker0, a management network) makes Open MPI hang or abort: it takes every
    interface to be connected with every host's.
    """
    import psutil

    own = {
        IPv4Interface(f"{entry.address}/{entry.netmask}")
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family.name == "AF_INET" and entry.netmask and not entry.address.startswith("127.")
    }
    try:
        connections = psutil.Process(daemon.pid).net_connections("tcp4")
    except psutil.Error:
        return []
    used = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_ESTABLISHED}
    networks = {str(interface.network) for interface in own if str(interface.ip) in used}
    return sorted(networks) if len({interface.network for interface in own}) > 1 else []
