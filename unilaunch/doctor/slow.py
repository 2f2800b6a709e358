"""Find slow hosts and links from the measurements. The functions are pure, so that every verdict can be tested."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from unilaunch.doctor.diagnosis import Finding
from unilaunch.record import Record, field

#: A value that is this many times worse than the median is slow. Below 1.3, so that a factor of 1.3 is found although
#: each measurement has some per cent of error.
FACTOR = 1.2
#: It must also lie this many deviations (1.4826 x the median absolute deviation) from the others' median.
_DEVIATIONS = 4.0
#: A latency must also exceed the median by so many seconds: smaller differences come from the scheduler.
_LEAST_LATENCY = 1e-4
#: Share of TCP segments that are sent again, above which a network loses packets; a network that is well sends 0.0 %.
_LOSS = 0.003
#: Disks of hosts differ, and are shared: only a much slower one is named.
_DISK_FACTOR = 2.0
Pair = tuple[str, str]
K = TypeVar("K")


class Measured(Record):
    """What the hosts have measured; rates by the second.

    Attributes:
        product: Floating-point operations, by host.
        memory: Bytes, by host.
        disk: Bytes, by host.
        latency: Seconds, by pair.
        bandwidth: Bytes, by pair.
        skew: Seconds that a host's clock is ahead of the first one's, by host.
        lost: Share of the TCP segments that had to be sent again, by pair.
    """

    product: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    disk: Mapping[str, float] = field(default_factory=dict)
    latency: Mapping[Pair, float] = field(default_factory=dict)
    bandwidth: Mapping[Pair, float] = field(default_factory=dict)
    skew: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[Pair, float] = field(default_factory=dict)


def read_measured(names: Mapping[int, str], told: Mapping[int, Mapping[str, Any]]) -> Measured:
    """Return the probes' measurements (`measuring.measure`).

    Args:
        names: The host of each rank.
        told: The measurements of each rank.
    """
    first = names[min(told)] if told else ""
    pairs = {
        (names[rank], names[int(partner)]): values
        for rank, one in sorted(told.items())
        for partner, values in one.get("pairs", {}).items()
    }
    product, memory, disk = (
        {names[rank]: float(one[name]) for rank, one in sorted(told.items())} for name in ("product", "memory", "disk")
    )
    return Measured(
        product,
        memory,
        disk,
        latency={pair: float(values[0]) for pair, values in pairs.items()},
        bandwidth={pair: float(values[1]) for pair, values in pairs.items()},
        skew={pair[1]: float(values[2]) for pair, values in pairs.items() if pair[0] == first},
        lost={pair: float(values[3]) for pair, values in pairs.items()},
    )


def find_slow(measured: Measured) -> dict[str | Pair, list[Finding]]:
    """Return the slow hosts, and the slow links between the other hosts, each with what to do."""
    slow: dict[str | Pair, list[Finding]] = {}

    def name(who: str | Pair, text: str) -> None:
        where = who if isinstance(who, str) else f"{who[0]} - {who[1]}"
        slow.setdefault(who, []).append(Finding(f"{where}: {text}"))

    for what, rates, factor in (
        ("matrix products", measured.product, FACTOR),
        ("memory", measured.memory, FACTOR),
        ("disk", measured.disk, _DISK_FACTOR),
    ):
        for host, ratio in _outliers({host: 1 / max(rate, 1e-9) for host, rate in rates.items()}, factor).items():
            slowness = f"slow {what}, {ratio:.1f} x the time of the others' median"
            name(host, f"{slowness if rates[host] else 'nothing can be written in this folder'}: {_ADVICE[what]}")
    for who, share in _losing(measured.lost).items():
        name(who, f"loses packets, {share:.1%} of the TCP segments were sent again: {_ADVICE['network']}")
    seconds = {pair: 1 / max(rate, 1e-9) for pair, rate in measured.bandwidth.items()}
    for what, times, least in (("bandwidth", seconds, 0.0), ("latency", measured.latency, _LEAST_LATENCY)):
        best = _best(times)
        several = len(best) > 2  # noqa: PLR2004  (of two hosts nobody knows which one is slow)
        bad = _outliers(best, FACTOR, least) if several else {}
        for host, ratio in bad.items():
            name(host, f"slow network ({what}), {ratio:.1f} x the time of the others' median: {_ADVICE['network']}")
        well = {pair: value for pair, value in times.items() if not set(pair) & set(slow)}
        for pair, ratio in _outliers(well, FACTOR, least).items():
            name(pair, f"slow link ({what}), {ratio:.1f} x the time of the others' median: {_ADVICE['network']}")
    return slow


_ADVICE = {
    "matrix products": "look for other programs, a CPU quota, heat or a power limit there",
    "memory": "look for other programs, or a missing memory module there",
    "disk": "look for a full or failing disk there",
    "network": "look at the cable, the port's speed and errors (ethtool -S)",
}


def _losing(lost: Mapping[Pair, float]) -> dict[str | Pair, float]:
    """Return the hosts all of whose pairs lose packets, the pairs of other hosts that do, and how much."""
    best = _best(lost)
    found: dict[str | Pair, float] = {
        host: share
        for host, share in best.items()
        if share > _LOSS and len(best) > 2  # noqa: PLR2004
    }
    return found | {pair: share for pair, share in lost.items() if share > _LOSS and not set(pair) & set(found)}


def _outliers(times: Mapping[K, float], factor: float, least: float = 0.0) -> dict[K, float]:
    """Return the entries that are slower than the median of the others, and by which factor."""
    found, ordered = {}, sorted(times.values())
    for key, value in times.items() if len(times) > 1 else ():
        place = bisect_left(ordered, value)
        usual = _middle(ordered, place)
        if value <= factor * usual:
            continue
        others = ordered[:place] + ordered[place + 1 :]
        spread = 1.4826 * median(abs(other - usual) for other in others)
        if value - usual > max(least, _DEVIATIONS * spread if len(others) > 2 else 0.0):  # noqa: PLR2004
            found[key] = value / usual
    return found


def _middle(ordered: Sequence[float], left_out: int) -> float:
    """Return the median of sorted values, without the one at place *left_out*."""
    low, high = ((len(ordered) - 2 + more) // 2 for more in (0, 1))
    return (ordered[low + (low >= left_out)] + ordered[high + (high >= left_out)]) / 2


def _best(times: Mapping[Pair, float]) -> dict[str, float]:
    """Return the least value of each host's pairs."""
    best: dict[str, float] = {}
    for pair, value in times.items():
        for host in pair:
            best[host] = min(value, best.get(host, value))
    return best


def healthy(hosts: Sequence[str], slow: Mapping[str | Pair, object]) -> list[str]:
    """Return the hosts without a fault. Of a slow link leave out the host with more slow links, or the later one."""
    left = [host for host in hosts if host not in slow]
    links = [pair for pair in slow if isinstance(pair, tuple)]
    while open_links := [pair for pair in links if set(pair) <= set(left)]:
        counts = {host: sum(host in pair for pair in open_links) for host in left}
        left.remove(max(reversed(left), key=counts.__getitem__))
    return left


def table(measured: Measured) -> list[str]:
    """Return the measurements as lines of text: the figures of each host, with its best link to another host."""
    latencies = _best(measured.latency)
    seconds_of_a_byte = _best({pair: 1 / max(rate, 1e-9) for pair, rate in measured.bandwidth.items()})
    shares_lost = _best(measured.lost)
    rows = [("host", "product", "memory", "disk", "latency", "bandwidth", "lost", "clock")]
    for host in measured.product:
        latency, seconds = latencies.get(host), seconds_of_a_byte.get(host)
        lost, skew = shares_lost.get(host), measured.skew.get(host)
        rows.append((
            host,
            f"{measured.product[host] / 1e9:.1f} GFLOP/s",
            f"{measured.memory[host] / 1e9:.1f} GB/s",
            f"{measured.disk[host] / 1e6:.0f} MB/s" if measured.disk[host] else "-",
            "-" if latency is None else f"{latency * 1e6:.0f} us",
            "-" if seconds is None else f"{1 / seconds / 1e6:.0f} MB/s",
            "-" if lost is None else f"{lost:.1%}",
            "-" if skew is None else f"{skew * 1e3:+.1f} ms",
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
