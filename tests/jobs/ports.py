"""Ports for processes that must be told one before they listen."""

import random
import socket
from contextlib import suppress


def free_ports(count: int) -> list[int]:
    """Return ports below those that the kernel or unilaunch assigns: until somebody listens, no other test gets one."""
    free: list[int] = []
    for port in random.sample(range(10_000, 20_000), 100):
        with suppress(OSError), socket.create_server(("", port)):
            free.append(port)
    return free[:count]
