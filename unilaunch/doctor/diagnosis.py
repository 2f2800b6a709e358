"""Find faults from the hosts' facts. The functions are pure, so that every finding can be tested."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from unilaunch.record import Record

LEAST_OPEN_FILES = 1024
LEAST_SHARED_MEMORY = 64 << 20  # bytes
LEAST_LOCKED_MEMORY = 64 << 20  # bytes
MOST_SKEW = 1.0  # seconds


class Visit(Record):
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


def diagnose(visits: Sequence[Visit]) -> list[Finding]:
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


def _host(visit: Visit) -> Iterator[Finding]:
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


def _names(told: Mapping[str, Visit]) -> Iterator[Finding]:
    names = Counter(visit.named for visit in told.values() if visit.named)
    for name, number in names.items():
        if number > 1:
            hosts = ", ".join(host for host, visit in told.items() if visit.named == name)
            yield Finding(f"{hosts} all call themselves {name}: give each host a name of its own", stops=False)


def _folder(told: Mapping[str, Visit]) -> Iterator[Finding]:
    alone = [host for host, visit in told.items() if not visit.facts["shares_folder"]]
    if alone:
        yield Finding(
            f"{', '.join(alone)}: other files than here: copy scripts and data there; logs stay, results and "
            "failures come back",
            stops=False,
        )


def _disks(told: Mapping[str, Visit]) -> Iterator[Finding]:
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


def apart(pairs: Collection[tuple[str, str]]) -> Iterator[Finding]:
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
