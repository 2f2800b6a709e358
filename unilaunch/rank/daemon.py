"""The launcher's process above this rank: which it is, and over which networks it speaks with the other hosts."""

import os
from dataclasses import dataclass
from pathlib import Path

from unilaunch.addresses import interface_addresses, is_loopback, plain

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


def routable_interfaces(daemon: Daemon) -> list[str]:
    """Return the network interfaces over which *daemon* is connected with other hosts, if this host has others besides.

    A second interface that leads nowhere (docker0, a management network) makes Open MPI hang or abort: it takes every
    interface to be connected with every host's.
    """
    import psutil

    own = [(name, address) for name, address in interface_addresses() if not is_loopback(address)]
    try:
        connections = psutil.Process(daemon.pid).net_connections("tcp")
    except psutil.Error:
        return []
    used = {plain(connection.laddr.ip) for connection in connections if connection.status == psutil.CONN_ESTABLISHED}
    connected = {name for name, address in own if address in used}
    return sorted(connected) if {name for name, _ in own} > connected else []
