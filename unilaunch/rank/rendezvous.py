"""Where is rank 0: an address that every rank reached, a port that rank 0 holds, and each rank's way to it."""

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from unilaunch.agreement import agree
from unilaunch.backend import Peers, Rendezvous
from unilaunch.errors import RendezvousError
from unilaunch.world import World

if TYPE_CHECKING:
    from unilaunch.spec import RunSpec

PATIENCE = 2.0  # seconds that a rank tries one address
_LOOPBACK = "127.0.0.1"


def meet(peers: Peers, world: World, spec: "RunSpec") -> Rendezvous:
    """Agree on where rank 0 listens. All ranks must call it.

    Rank 0 binds its port and keeps it, so nobody can take it in between. It names its addresses, every rank tries
    them, and the first one that all of them reached is taken; the interface of each rank follows from it. On one host
    there is nothing to try.

    Raises:
        RefusedTogetherError: Rank 0 cannot listen.
        RendezvousError: No address is reached by every rank.
    """
    listener = _listen_together(peers, world, spec)
    offer = peers.share([*_addresses(world, spec), listener.getsockname()[1]] if listener else None)[0]
    *addresses, port = cast("list[Any]", offer)
    if addresses == [_LOOPBACK]:
        return Rendezvous(_LOOPBACK, port, spec.interface or "lo", listener)
    sources = {address: _reach(address, port) for address in addresses}
    reached = cast("list[list[str]]", peers.share([address for address, source in sources.items() if source]))
    if listener:
        _drain(listener)
    for address in addresses:
        if all(address in others for others in reached):
            interface = spec.interface or _interface_of(str(sources[address]))
            return Rendezvous(address, port, interface, listener)
    if listener:
        listener.close()
    lost = ", ".join(f"rank {rank} reached {', '.join(others) or 'none'}" for rank, others in enumerate(reached))
    raise RendezvousError(
        f"no address of rank 0 is reached by every rank (tried {', '.join(addresses)}, port {port}; {lost}): "
        "name one with --master-addr, or the network's interface with --interface"
    )


def _listen_together(peers: Peers, world: World, spec: "RunSpec") -> socket.socket | None:
    listener, refused = None, None
    if world.rank == 0:
        try:
            listener = _listen(spec.master_port or 0)
        except RendezvousError as error:
            refused = error
    agree(peers, refused)
    return listener


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Connections of a run that has just ended hold its port for a minute: the next run may have it all the same.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise RendezvousError(f"--master-port {port}: rank 0 cannot listen there: {error.strerror}") from None
    return listener


def _addresses(world: World, spec: "RunSpec") -> list[str]:
    """Return rank 0's addresses, likeliest first."""
    if spec.master_addr:
        return [spec.master_addr]
    if world.num_hosts == 1:
        return [_LOOPBACK]
    import psutil  # for several hosts only

    found = []
    for name, entries in psutil.net_if_addrs().items():
        if spec.interface in {None, name}:
            found += [entry.address for entry in entries if entry.family == socket.AF_INET]
    return sorted(found, key=lambda address: (address.startswith("127."), address.startswith("172.17.")))


def _reach(address: str, port: int) -> str | None:
    """Return this host's own address on the way to rank 0; None if there is no way."""
    try:
        with closing(socket.create_connection((address, port), timeout=PATIENCE)) as connection:
            return str(connection.getsockname()[0])
    except OSError:
        return None


def _drain(listener: socket.socket) -> None:
    """Take and drop the connections that the trial has left in the queue."""
    listener.setblocking(False)
    try:
        while True:
            listener.accept()[0].close()
    except BlockingIOError:
        pass
    finally:
        listener.setblocking(True)


def _interface_of(address: str) -> str:
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in entries):
            return name
    return "lo"
