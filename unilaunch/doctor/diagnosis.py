"""Judge what the hosts have told: faults from their facts, slow hosts and links from their measurements.

The functions are pure, so that every finding can be tested.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from unilaunch.record import Record, field

LEAST_OPEN_FILES = 1024
LEAST_SHARED_MEMORY = 64 << 20  # bytes
LEAST_LOCKED_MEMORY = 64 << 20  # bytes
MOST_SKEW = 1.0  # seconds
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


class HostFacts(Record):
    """What one host has told.

    Attributes:
        host: Its name in the hostfile.
        slots: Ranks that the host takes; None if the hostfile does not say.
        facts: `probe.facts`; empty if the host did not answer.
        skew: Seconds that its clock is ahead of the launching host's, including the time that the message took.
        named: The host's name for itself.
    """

    host: str
    slots: int | None
    facts: Mapping[str, Any]
    skew: float = 0.0
    named: str = ""


class Finding(Record):
    """Something to put right, in one line.

    Attributes:
        text: What is wrong, where, and what to do.
        stops: Whether the fault keeps a job from starting or working.
        hosts: The hosts that have the fault; empty if that is unknown.
    """

    text: str
    stops: bool = True
    hosts: tuple[str, ...] = ()


def diagnose(visits: Sequence[HostFacts]) -> list[Finding]:
    """Return everything that is wrong or differs."""
    told = {visit.host: visit for visit in visits if visit.facts}
    return [
        *differing({host: visit.facts["python"] for host, visit in told.items()}, "Python", "use one version"),
        *_packages({host: visit.facts["packages"] for host, visit in told.items()}),
        *(finding for visit in told.values() for finding in _host(visit)),
        *_names(told),
        *_folder(told),
        *_disks(told),
    ]


def differing(found: Mapping[str, str | None], what: str, fix: str) -> Iterator[Finding]:
    """Give the hosts whose version is not the most frequent one."""
    if len(set(found.values())) <= 1:
        return
    usual = Counter(found.values()).most_common(1)[0][0]
    for host, version in found.items():
        if version != usual:
            has = f"has {what} {version}" if version else f"has no {what}"
            others = f"the others {usual}" if usual else "the others have none"
            yield Finding(f"{host} {has}, {others}: {fix}", hosts=(host,))


def _packages(found: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    for name in sorted({name for packages in found.values() for name in packages}):
        versions = {host: packages.get(name) for host, packages in found.items()}
        usual = Counter(versions.values()).most_common(1)[0][0]
        fix = f"pip install {name}=={usual} there" if usual else f"pip uninstall {name} there, or install it everywhere"
        yield from differing(versions, name, fix)


def _host(visit: HostFacts) -> Iterator[Finding]:
    facts, host = visit.facts, visit.host
    for fault in facts["faults"]:
        yield Finding(f"{host}: {fault}", hosts=(host,))
    devices = {kind: number for kind, number in facts["devices"].items() if number}
    for kind, number in devices.items():
        if visit.slots and visit.slots > number:
            yield Finding(
                f"{host} has slots={visit.slots} and {number} {kind} devices: write slots={number}, or --device cpu",
                hosts=(host,),
            )
    if facts["open_files"] < LEAST_OPEN_FILES:
        yield Finding(
            f"{host}: at most {facts['open_files']} open files: ulimit -n {LEAST_OPEN_FILES} in its profile",
            stops=False,
        )
    if devices and 0 <= facts["locked_memory"] < LEAST_LOCKED_MEMORY:
        yield Finding(f"{host}: locked memory is limited: ulimit -l unlimited, for RDMA", stops=False)
    if facts["shared_memory"] < LEAST_SHARED_MEMORY:
        size = facts["shared_memory"] >> 20
        small = f"{host}: /dev/shm has {size} MB: remount it larger (docker run --shm-size=1g)"
        yield Finding(small, stops=size < 1, hosts=(host,))
    if abs(visit.skew) > MOST_SKEW:
        yield Finding(f"{host}: its clock is {visit.skew:+.1f} s off: start ntp or chrony there", stops=False)


def _names(told: Mapping[str, HostFacts]) -> Iterator[Finding]:
    names = Counter(visit.named for visit in told.values() if visit.named)
    for name, number in names.items():
        if number > 1:
            hosts = ", ".join(host for host, visit in told.items() if visit.named == name)
            yield Finding(f"{hosts} all call themselves {name}: give each host a name of its own", stops=False)


def _folder(told: Mapping[str, HostFacts]) -> Iterator[Finding]:
    alone = [host for host, visit in told.items() if not visit.facts["shares_folder"]]
    if alone:
        yield Finding(
            f"{', '.join(alone)}: other files than here: copy scripts and data there; logs stay, results and "
            "failures come back",
            stops=False,
        )


def _disks(told: Mapping[str, HostFacts]) -> Iterator[Finding]:
    hosts_of: dict[tuple[str, ...], list[str]] = {}
    for host, visit in told.items():
        hosts_of.setdefault(tuple(visit.facts.get("full", ())), []).append(host)
    for folders, hosts in hosts_of.items():
        if folders:
            where = ", ".join(folders)
            yield Finding(
                f"{', '.join(hosts)}: the disk is full: make room in {where}, or name another folder",
                hosts=tuple(hosts),
            )


def unconnected(pairs: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """Give the hosts that cannot connect to others, the one with most others first.

    Args:
        pairs: Of each connection that failed, the host that called, and the host that was called.
    """
    while pairs:
        ends = Counter(end for pair in pairs for end in enumerate(pair))
        side, host = ends.most_common(1)[0][0]
        group = [pair for pair in pairs if pair[side] == host]
        callers, called = (", ".join(dict.fromkeys(names)) for names in zip(*group, strict=True))
        yield Finding(
            f"no TCP connection from {callers} to {called}: let them connect at every port of "
            "net.ipv4.ip_local_port_range (firewall, security group)"
        )
        pairs = [pair for pair in pairs if pair[side] != host]


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
    """Return the probes' measurements (`measuring.measure`)."""
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
