"""The launcher's process above this rank: where its MPI library is, and over which networks it speaks with others."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Daemon:
    """A launcher's process.

    Attributes:
        pid: Its process number.
        program: Its program, as an absolute path.
        libraries: File names of its MPI library.
    """

    pid: int
    program: Path
    libraries: tuple[str, ...]

    def find_library(self) -> Path | None:
        """Return the MPI library of the same installation; None if it cannot be told."""
        prefix = self.program.parent.parent
        folders = [prefix / "lib", prefix / "lib64", *sorted(prefix.glob("lib/*-linux-gnu"))]
        places = (folder / name for folder in folders for name in self.libraries)
        return next((place for place in places if place.exists()), None)


def routable_networks(daemon: Daemon) -> list[str]:
    """Return the IPv4 networks over which *daemon* is connected with other hosts, if this host has others besides.

    A second interface that leads nowhere (docker0, a management network) makes Open MPI hang or abort: it takes every
    interface to be connected with every host's.
    """
    from ipaddress import IPv4Interface

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
