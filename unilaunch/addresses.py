"""By which addresses, of either IP version, this host and others can be called; a listening socket at them."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

_LOOPBACKS = "127.0.0.1", "::1"
_LINK_LOCAL = "fe80:"
_DOCKER = "172.17."  # every host has this network alike, and on none it leads to another host
#: By whether an address has a colon in it.
FAMILIES = {False: socket.AF_INET, True: socket.AF_INET6}


def listen(port: int, *, several: bool) -> socket.socket:
    """Return a listening socket: on every address of this host, of both IP versions; on loopback for one host.

    Args:
        port: 0 for one that is free.
        several: The job has other hosts than this one.

    Raises:
        OSError: The port is taken.
    """
    if not several:
        address = loopback()
        return socket.create_server((address, port), family=FAMILIES[":" in address], backlog=4096)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=4096)


@cache
def loopback() -> str:
    """Return the address by which this host reaches itself: IPv4's, or IPv6's where the host has no IPv4."""
    with suppress(OSError), socket.socket() as probe:
        probe.bind((_LOOPBACKS[0], 0))
        return _LOOPBACKS[0]
    return _LOOPBACKS[1]


def is_loopback(address: str) -> bool:
    """Return whether an address, or a name, means the host itself, on every host."""
    return address.startswith("127.") or address in {_LOOPBACKS[1], "localhost"}


def own_addresses(hosts: Sequence[str] = (), *, several: bool, interface: str | None = None) -> list[str]:
    """Return this host's addresses, likeliest first; loopback if there is one host.

    Args:
        hosts: Other hosts of the job: the address on the way to them comes first.
        several: The job has other hosts than this one.
        interface: Only the addresses of this network interface, also if it is the loopback.
    """
    if not several:
        return [loopback()]
    if interface:
        return [address for name, address in interface_addresses() if name == interface]
    found = [address for _, address in interface_addresses() if not is_loopback(address)]
    found.sort(key=lambda address: (address.startswith(_DOCKER), ":" in address))
    return list(dict.fromkeys([*_towards(hosts), *found])) or [loopback()]


def interface_of(address: str) -> str | None:
    """Return the network interface of this host that has an address; None if no interface has it."""
    if is_loopback(address):
        return "lo"  # it has all of 127.0.0.0/8, and is listed with one of them
    return next((name for name, one in interface_addresses() if one == address), None)


def interface_addresses() -> list[tuple[str, str]]:
    """Return the interface and the address of everything by which this host can be called, on any IP version."""
    import psutil  # for several hosts only

    return [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in FAMILIES.values() and not entry.address.startswith(_LINK_LOCAL)
    ]


@cache
def resolve(host: str) -> list[str]:
    """Return a host's addresses; asked for once, since a resolver that does not know the name can take its time."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None)))
    except OSError:
        return []


def _towards(hosts: Sequence[str]) -> list[str]:
    for host in hosts:
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))  # sends nothing
                address = str(probe.getsockname()[0])
                if not is_loopback(address) and not address.startswith(_LINK_LOCAL):
                    return [address]
    return []


def plain(address: str) -> str:
    """Return an address as both ends of a connection know it: not as IPv6 what is IPv4."""
    return address.removeprefix("::ffff:")
