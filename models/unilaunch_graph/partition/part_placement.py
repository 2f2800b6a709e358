"""Which host each part goes to: those that send each other most go to the same one."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def place(traffic: NDArray[np.int64], slots: Mapping[str, int]) -> list[str]:
    """Return the host of each part, hosts filled in their order: what is nearest to those on a host joins them.

    A greedy growth, then swaps of two parts as long as one lowers what crosses between hosts.

    Args:
        traffic: Rows that part i sends to part j. (num_parts, num_parts)
        slots: Free slots by host; together at least as many as parts.
    """
    both = (traffic + traffic.T).astype(np.float64)
    names = list(slots)
    host = _grow(both, [slots[name] for name in names])
    _swap(both, host)
    return [names[at] for at in host]


def crossing(traffic: NDArray[np.int64], hosts: list[str]) -> int:
    """Return the rows that go from one host to another in an exchange."""
    at = np.unique(hosts, return_inverse=True)[1]
    return int(traffic[at[:, None] != at].sum())


def _grow(both: NDArray[np.float64], sizes: list[int]) -> NDArray[np.int64]:
    host = np.full(len(both), -1)
    for at, size in enumerate(sizes):
        near = np.zeros(len(both))
        for taken in range(min(size, int((host < 0).sum()))):
            free = host < 0
            # The first one of a host is the one with least to the parts that are placed already: it lies at an edge.
            wanted = near if taken else -both[:, ~free].sum(axis=1)
            part = int(np.where(free, wanted, -np.inf).argmax())
            host[part] = at
            near += both[part]
    return host


def _swap(both: NDArray[np.float64], host: NDArray[np.int64]) -> None:
    """Exchange the two parts that gain most by it, as long as any do (Kernighan and Lin, 1970, without look-ahead)."""
    for _ in range(len(both)):
        to_host = np.stack([both[:, host == at].sum(axis=1) for at in range(host.max() + 1)], axis=1)
        own = to_host[np.arange(len(host)), host]
        gain = to_host[:, host] - own[:, None]
        gain = gain + gain.T - 2 * both
        gain[host[:, None] == host] = 0
        first, second = np.unravel_index(gain.argmax(), gain.shape)
        if gain[first, second] <= 0:
            return
        host[first], host[second] = host[second], host[first]
