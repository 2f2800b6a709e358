"""Assign a host to each part: parts that send each other the most rows get the same host."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def place(traffic: NDArray[np.int64], slots: Mapping[str, int]) -> list[str]:
    """Return the host of each part. Hosts are filled in order; a host gets next the part with most rows to its parts.

    After this greedy step, two parts are swapped as long as a swap reduces the rows between hosts.

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
            # The first part of a host is the one that exchanges the fewest rows with the placed parts.
            wanted = near if taken else -both[:, ~free].sum(axis=1)
            part = int(np.where(free, wanted, -np.inf).argmax())
            host[part] = at
            near += both[part]
    return host


def _swap(both: NDArray[np.float64], host: NDArray[np.int64]) -> None:
    """Swap the two parts with the largest gain, as long as there is a gain (Kernighan and Lin, 1970, no look-ahead)."""
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
