"""The addresses, of either IP version, at which this host and others can be reached; listening sockets."""

import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache

_LOOPBACKS = "127.0.0.1", "::1"
_LINK_LOCAL = "fe80:"
_DOCKER = "172.17."  # Docker makes this network on every host; it connects no hosts
#: Addresses of one interface that are likely to be this host's: kube-proxy's has one for each service of the cluster.
_OF_AN_INTERFACE = 8
#: Most addresses that ranks try: a board holds 4096 bytes, and 64 addresses of IPv6 take 3000.
_MOST = 64
#: Address family, by whether an address contains a colon.
FAMILIES = {False: socket.AF_INET, True: socket.AF_INET6}


def listen(port: int, *, several: bool) -> socket.socket:
    """Return a listening socket: on every address of this host, of both IP versions; for one host only on loopback.

    Args:
        port: The port; 0 for a free one.
        several: Whether the job has other hosts than this one.

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
    """Return the loopback address of this host: that of IPv4, or that of IPv6 if the host has no IPv4."""
    with suppress(OSError), socket.socket() as probe:
        probe.bind((_LOOPBACKS[0], 0))
        return _LOOPBACKS[0]
    return _LOOPBACKS[1]


def is_loopback(address: str) -> bool:
    """Return whether an address or a name is that of the loopback interface."""
    return address.startswith("127.") or address in {_LOOPBACKS[1], "localhost"}


def own_addresses(hosts: Sequence[str] = (), *, several: bool, interface: str | None = None) -> list[str]:
    """Return this host's addresses, the likeliest first; loopback if there is one host.

    Args:
        hosts: Other hosts of the job: this host's address on the route to them comes first.
        several: Whether the job has other hosts than this one.
        interface: Only the addresses of this network interface, even if it is the loopback interface.
    """
    if not several:
        return [loopback()]
    if interface:
        return [address for name, address in interface_addresses() if name == interface]
    found: dict[str, list[str]] = {}
    for name, address in interface_addresses():
        if not is_loopback(address):
            found.setdefault(name, []).append(address)
    crowd = {address for of_one in found.values() for address in of_one[_OF_AN_INTERFACE:]}
    every = [address for of_one in found.values() for address in of_one]
    every.sort(key=lambda address: (address in crowd, address.startswith(_DOCKER), ":" in address))
    return list(dict.fromkeys([*_towards(hosts), *every]))[:_MOST] or [loopback()]


def interface_of(address: str) -> str | None:
    """Return the network interface of this host that has an address; None if no interface has it."""
    if is_loopback(address):
        return "lo"  # this interface has all addresses of 127.0.0.0/8, and psutil lists only one
    return next((name for name, one in interface_addresses() if one == address), None)


def interface_addresses() -> list[tuple[str, str]]:
    """Return all addresses of this host, of both IP versions, each as (interface, address)."""
    import psutil  # for several hosts only

    return [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in FAMILIES.values() and not entry.address.startswith(_LINK_LOCAL)
    ]


def own_names(hosts: Collection[str]) -> set[str]:
    """Return every name and address by which *hosts* may mean this host; domains are not compared, as in Open MPI."""
    name = socket.gethostname()
    first = name.partition(".")[0]
    full = () if first.isdecimal() else (host for host in hosts if host.partition(".")[0] == first)
    names = {*_LOOPBACKS, "localhost", name, first, *full}
    return names if set(hosts) <= names else names | {address for _, address in interface_addresses()}


def resolve(host: str) -> list[str]:
    """Return a host's addresses; empty if it has none yet. Not cached: a pod's record can appear or change later."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None)))
    except (OSError, UnicodeError):  # a name with an empty or a long part cannot be encoded
        return []


def _towards(hosts: Sequence[str]) -> list[str]:
    for host in hosts:
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError, UnicodeError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))  # sends nothing
                address = str(probe.getsockname()[0])
                if not is_loopback(address) and not address.startswith(_LINK_LOCAL):
                    return [address]
    return []


def plain(address: str) -> str:
    """Return an address in its plain form, with which both ends of a connection agree: an IPv4 address as IPv4."""
    return address.removeprefix("::ffff:")
