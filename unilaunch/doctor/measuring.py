"""Measure the speed of a host: matrix products, memory, disk, and the link to each other host.

The ranks of the probe measure together, one on each host. A rate is the best one of several windows, each of some
periods of a CPU quota (100 ms): what disturbs a host for a moment does not count, what slows it down all the time does.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from unilaunch.interfaces.backend import Collectives, Peers
from unilaunch.interfaces.calls import CallLog
from unilaunch.json_value import JsonValue

_WINDOWS = 3
_SECONDS = 0.5  # of a window on the host
_ORDER = 384  # of the matrices
_MEMORY = 32 << 20  # bytes of an array that is copied; more than caches hold
_DISK = 16 << 20  # bytes that are written at once
_DISK_WINDOWS, _PAUSE = 6, 0.1  # each may take 0.01 s only, and a disk of other programs too is busy for longer
_PINGS = 60
_MESSAGE = 1 << 18  # bytes of a message when bandwidth is measured
_MOST_MESSAGES = 32  # in one go
_PAIR_SECONDS = 0.1  # of a window between two hosts
_COUNTS = Path("/proc/net/snmp")
_FEW_SEGMENTS = 5  # sent again: fewer say nothing, TCP also sends some again that were only late
#: Number of other hosts with which a host is measured: more take time and add no information.
MOST_PARTNERS = 32


def measure(peers: Peers, rank: int, size: int, machine: str, note: Callable[[], None]) -> dict[str, JsonValue]:
    """Measure this host and return the results; all ranks must call it.

    Args:
        peers: The ranks, one on each host.
        rank: This rank.
        size: Number of ranks.
        machine: An identity that hosts of one machine (containers) share: they measure in turn, not at once.
        note: Called when this host is measured; the links to the others follow.

    Returns:
        "product" (floating-point operations a second), "memory" and "disk" (bytes a second), and "pairs": by the
        partner's rank [seconds of latency, bytes a second, seconds that its clock is ahead of this one's, share of the
        TCP segments that had to be sent again], of each pair once.
    """
    machines = peers.share(machine)
    turn = machines[:rank].count(machine)
    figures: dict[str, JsonValue] = {}
    for one in range(max(machines.count(name) for name in machines)):
        if one == turn:
            figures = {"product": _product(), "memory": _copy(), "disk": _write()}
            note()
        peers.share(None)
    if size > 1:
        collectives = peers.collectives()
        pairs: dict[str, JsonValue] = {}
        for partner in partners(rank, size):
            found = _Pair(collectives, size, rank, partner).measure()
            if rank < partner:
                pairs[str(partner)] = list(found)
        figures["pairs"] = pairs
    return figures


def partners(rank: int, size: int) -> list[int]:
    """Return the partners of a rank, round by round: in each round the ranks are in pairs (round robin)."""
    places = size + size % 2  # with an odd number of ranks one rank pauses in each round
    found = []
    for one in range(min(places - 1, MOST_PARTNERS)):
        if rank == places - 1:
            partner = one * places // 2 % (places - 1)
        else:
            partner = (one - rank) % (places - 1)
            if partner == rank:
                partner = places - 1
        found.append(partner)
    return [partner for partner in found if partner < size]


def _rate(work: Callable[[], float]) -> float:
    """Return the rate of the best window, per second. *work* does one piece of work and returns its size."""
    work()
    best = 0.0
    for _ in range(_WINDOWS):
        begin, done = time.perf_counter(), 0.0
        while (seconds := time.perf_counter() - begin) < _SECONDS:
            done += work()
        best = max(best, done / seconds)
    return best


def _product() -> float:
    left, right = np.ones((_ORDER, _ORDER), np.float32), np.ones((_ORDER, _ORDER), np.float32)
    result = np.empty_like(left)

    def work() -> float:
        np.matmul(left, right, out=result)
        return 2.0 * _ORDER**3

    return _rate(work)


def _copy() -> float:
    source, target = np.ones(_MEMORY, np.uint8), np.ones(_MEMORY, np.uint8)

    def work() -> float:
        np.copyto(target, source)
        return 2.0 * _MEMORY  # read and written

    return _rate(work)


def _write() -> float:
    """Return the bytes a second that reach the disk of the current folder; 0 if none can be written there."""
    data, best = os.urandom(_DISK), 0.0
    with suppress(OSError), tempfile.TemporaryFile(dir=".") as file:
        for _ in range(_DISK_WINDOWS):
            begin = time.perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            best = max(best, _DISK / (time.perf_counter() - begin))
            time.sleep(_PAUSE)
    return best


class _Pair:
    """This rank and a partner. The rank with the lower number sends first, and measures the times."""

    def __init__(self, collectives: Collectives, size: int, rank: int, partner: int) -> None:
        collectives.calls = CallLog()  # of this pair: the other ranks make other calls meanwhile
        self.collectives, self.begins = collectives, rank < partner
        self.nothing = np.empty(0, np.uint8)
        self.none = [0] * size
        self.partner = partner

    def measure(self) -> tuple[float, float, float, float]:
        """Return the latency, the bandwidth, the partner's clock and what was lost; see the module's `measure`."""
        latency, skew = self._ping()
        rate, lost = self._rate()
        return latency, rate, skew, lost

    def _counts(self, number: int) -> Sequence[int]:
        return [*self.none[: self.partner], number, *self.none[self.partner + 1 :]]

    def _send(self, data: Any) -> None:
        self.collectives.exchange(data, self._counts(len(data)), self.nothing, self.none).wait()

    def _receive(self, data: Any) -> None:
        self.collectives.exchange(self.nothing, self.none, data, self._counts(len(data))).wait()

    def _ping(self) -> tuple[float, float]:
        clock = np.zeros(1)
        trips, skews = [], []
        for _ in range(_PINGS):
            if self.begins:
                began, at = time.perf_counter(), time.time()
                self._send(clock)
                self._receive(clock)
                trips.append(time.perf_counter() - began)
                skews.append(float(clock[0]) - at - trips[-1] / 2)
            else:
                self._receive(clock)
                clock[0] = time.time()
                self._send(clock)
        if not trips:
            return 0.0, 0.0
        return median(trips) / 2, skews[trips.index(min(trips))]  # the shortest round trip is the most accurate

    def _rate(self) -> tuple[float, float]:
        """Return the bandwidth of the worse direction, each one's best window: a port can be slow in one of them.

        And the share of the segments that the worse sender had to send again: packets are lost at random, and the best
        window may be one without.
        """
        before = _segments()
        rates = [max(self._flood(sends=sends) for _ in range(_WINDOWS)) for sends in (self.begins, not self.begins)]
        own = np.array([max(rates), _share_lost(before)])  # of the direction in which this rank sends
        other = np.zeros(2)
        if self.begins:
            self._send(own)
            self._receive(other)
        else:
            self._receive(other)
            self._send(own)
        return float(min(own[0], other[0])), float(max(own[1], other[1]))

    def _flood(self, *, sends: bool) -> float:
        """Send for a while, more messages in one go each time; the rank that sends tells the other how many."""
        data, messages, answer = np.zeros(_MESSAGE, np.uint8), np.ones(1, np.uint8), np.zeros(1, np.uint8)
        begin, sent, seconds = time.perf_counter(), 0, 0.0
        while messages[0]:
            if sends:
                for _ in range(messages[0]):
                    self._send(data)
                self._receive(answer)  # all messages have arrived
                sent, seconds = sent + int(messages[0]) * _MESSAGE, time.perf_counter() - begin
                messages[0] = 0 if seconds > _PAIR_SECONDS else min(2 * messages[0], _MOST_MESSAGES)
                self._send(messages)
            else:
                for _ in range(messages[0]):
                    self._receive(data)
                self._send(answer)
                self._receive(messages)
        return sent / seconds if seconds else 0.0


def _segments() -> tuple[int, int]:
    """Return how many TCP segments this host has sent, and how many again (RFC 4022); zeros where that is unknown."""
    try:
        names, values = (line.split() for line in _COUNTS.read_text().splitlines() if line.startswith("Tcp:"))
        counts = dict(zip(names, values, strict=True))
        return int(counts["OutSegs"]), int(counts["RetransSegs"])
    except (OSError, ValueError, KeyError):
        return 0, 0


def _share_lost(before: tuple[int, int]) -> float:
    """Return the share of the segments since *before* that this host had to send again."""
    sent, again = (now - then for now, then in zip(_segments(), before, strict=True))
    return again / sent if sent and again >= _FEW_SEGMENTS else 0.0
