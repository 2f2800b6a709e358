"""The names of this host."""

import socket
from collections.abc import Collection


def own_names(hosts: Collection[str]) -> set[str]:
    """Return every name and address by which *hosts* may mean this host."""
    name = socket.gethostname()
    names = {"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]}
    if set(hosts) <= names:
        return names
    import psutil

    return names | {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
