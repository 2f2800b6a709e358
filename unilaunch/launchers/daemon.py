"""The launcher's process above this rank: its MPI library, and the networks that it uses."""

from pathlib import Path

from unilaunch.record import Record


class Daemon(Record):
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
        """Return the MPI library of the same installation; None if it is unknown."""
        prefix = self.program.parent.parent
        folders = [prefix / "lib", prefix / "lib64", *sorted(prefix.glob("lib/*-linux-gnu"))]
        places = (folder / name for folder in folders for name in self.libraries)
        return next((place for place in places if place.exists()), None)


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
