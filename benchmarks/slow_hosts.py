"""Whether slow hosts and links are named, and no others: faults injected into hosts that are namespaces here.

    python benchmarks/slow_hosts.py --cases 200

Needs root, the tests' hosts (tests/cluster/hosts.py), tc, the cgroup controller cpu, and two processors that have
nothing else to do. The ports have a rate that the machine can give to all at once. What is wrong with the sick host:

- products: 1.3 to 3 x less processor time (a CPU quota), to be named by `doctor --measure`;
- rate: a port that is 1.3 to 3 x slower (tc tbf), to be named by `doctor --measure`;
- delay: each packet to and from it arrives 0.13 to 1 ms later (`Cluster.delay`), to be named by `doctor --measure`;
- loss: 3 to 10 % of the packets to it are lost (nftables), to be named by `doctor --measure`;
- straggler: 1.3 to 3 x less processor time for one rank of a running script, to be named by the straggler verdict;
- none: all hosts are well, and nothing is to be named. A sixth of the cases.

Each case has its seed, so that it can be run alone: --first 17 --cases 1.
"""

import argparse
import math
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster.hosts import Cluster

HOSTS = 3
KINDS = ("products", "rate", "delay", "loss", "straggler", "none")
FACTORS = (1.3, 1.5, 2.0, 3.0)
#: What is chosen from: milliseconds, per cent of the packets, or by how much a host is slower.
STRENGTHS = {"delay": (0.13, 0.2, 0.5, 1.0), "loss": (3, 5, 10)}
UNITS = {"delay": " ms", "loss": " %"}
#: Megabits a second of a port that is well.
RATE = 200
LEAST_NAMED, MOST_WRONG = 0.99, 0.01
PROGRAM = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(%d):
    until = time.thread_time() + 0.08
    while time.thread_time() < until:
        pass
    dist.all_reduce(torch.ones(8))
"""


@dataclass(frozen=True)
class Case:
    """What is wrong with which host, and how much (STRENGTHS)."""

    number: int
    kind: str
    host: int
    strength: float

    @classmethod
    def of(cls, number: int) -> "Case":
        """Return a case: the same one for a number each time."""
        chosen = random.Random(number)  # noqa: S311
        kind = KINDS[number % len(KINDS)]
        return cls(number, kind, chosen.randrange(HOSTS), chosen.choice(STRENGTHS.get(kind, FACTORS)))

    def of_kind(self, host: int, *kinds: str) -> float:
        """Return how much is wrong with a host, if it is one of *kinds*; 0 otherwise."""
        return self.strength if host == self.host and self.kind in kinds else 0


class Quota:
    """Processor time of a host's processes, by a cgroup of either version."""

    def __init__(self, name: str) -> None:
        first = Path("/sys/fs/cgroup/cpu")
        self.is_first = first.exists()
        self.folder = (first if self.is_first else Path("/sys/fs/cgroup")) / name
        self.folder.mkdir()
        self.members = self.folder / ("tasks" if self.is_first else "cgroup.procs")
        if self.is_first:
            (self.folder / "cpu.shares").write_text("65536")
        else:
            (self.folder / "cpu.weight").write_text("10000")

    def set(self, percent: float) -> None:
        """Allow so many hundredths of one processor; as many as there are if that is 0."""
        quota = int(1000 * percent) if percent else -1
        if self.is_first:
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.folder / "cpu.max").write_text(f"{quota if percent else 'max'} 100000")

    def take(self, pids: list[int]) -> None:
        """Put processes into it; what they start follows."""
        for pid in pids:
            self.members.write_text(str(pid))


@contextmanager
def quotas(cluster: Cluster) -> Iterator[list[Quota]]:
    """Give each host a quota while the block runs."""
    made = [Quota(f"unilaunch-{Path(cluster.folder).name}-{host}") for host in range(HOSTS)]
    for host, quota in enumerate(made):
        quota.take(cluster.pids(host))
    try:
        yield made
    finally:
        root = Path(made[0].folder.parent, made[0].members.name)
        for quota in made:
            for pid in quota.members.read_text().split():
                with suppress(ProcessLookupError):
                    root.write_text(pid)
            quota.folder.rmdir()


def run(case: Case, cluster: Cluster, limits: list[Quota], folder: Path) -> set[str]:
    """Return the hosts that are named."""
    for host, limit in enumerate(limits):
        limit.set(100 / (case.of_kind(host, "products", "straggler") or math.inf))
        cluster.slow_down(host, int(RATE / (case.of_kind(host, "rate") or 1)))
    cluster.lose(int(case.of_kind(case.host, "loss")), case.host)
    with cluster.delay(case.host, case.of_kind(case.host, "delay") / 1000) if case.kind == "delay" else nullcontext():
        return _named(case, cluster, limits, folder)


def _named(case: Case, cluster: Cluster, limits: list[Quota], folder: Path) -> set[str]:
    own = [sys.executable, "-m", "unilaunch"]
    running = case.kind == "straggler" or (case.kind == "none" and case.number % 8 == len(KINDS) - 1)
    used = [case.host, (case.host + 1) % HOSTS] if running else range(HOSTS)  # a processor for each rank
    names = ",".join(f"{cluster.names[host]}:1" for host in used)
    hosts = ["--allow-run-as-root", "--bind-to", "none", "-x", "OPENBLAS_NUM_THREADS=1", "-H", names]
    if running:
        script = folder / "script.py"
        script.write_text(PROGRAM % 150)
        line = [*own, "launch", *hosts, "--output-dir", str(folder / f"case{case.number}"), str(script)]
        _on_first(cluster, limits[0], line, folder, "")
        events = "".join(path.read_text() for path in folder.glob(f"case{case.number}/rank.*/events.jsonl"))
        return set(re.findall(r'"straggler": \d+, "host": "(\w+)"', events))
    said = _on_first(cluster, limits[0], [*own, "doctor", *hosts, "--measure"], folder, "GFLOP/s")
    return set(re.findall(r"^wrong +(\w+): (?:slow|loses)", said, re.MULTILINE))


def _on_first(cluster: Cluster, limit: Quota, line: list[str], folder: Path, wanted: str) -> str:
    """Run a command on the first host, in its quota, and return what it says; among that must be what is *wanted*."""
    there = ["sh", "-c", f'echo 0 > {limit.members}; exec "$@"', "sh", *line]
    job = cluster.run(0, there, folder)
    assert wanted in job.console, job.console
    assert job.returncode == 0 or wanted, job.console
    return job.console


def main() -> int:
    """Run the cases, and print how many were named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    named, wrong, sick = Counter[str](), 0, Counter[str]()
    with (
        tempfile.TemporaryDirectory() as keys,
        tempfile.TemporaryDirectory() as work,
        Cluster(HOSTS, Path(keys)) as cluster,
        quotas(cluster) as limits,
    ):
        for number in range(asked.first, asked.first + asked.cases):
            case = Case.of(number)
            found = run(case, cluster, limits, Path(work))
            right = set() if case.kind == "none" else {cluster.names[case.host]}
            sick[case.kind] += bool(right)
            named[case.kind] += bool(right & found)
            wrong += bool(found - right)
            of = f"{case.strength}{UNITS.get(case.kind, ' x')} on {cluster.names[case.host]}" if right else ""
            print(f"case {number}: {case.kind} {of}: named {', '.join(sorted(found)) or 'nobody'}", flush=True)
    for kind in KINDS[:-1]:
        print(f"{kind}: {named[kind]} of {sick[kind]} named")
    share, false = sum(named.values()) / max(1, sum(sick.values())), wrong / asked.cases
    print(f"named {share:.1%} (at least {LEAST_NAMED:.0%}): {'kept' if share >= LEAST_NAMED else 'BROKEN'}")
    print(f"wrong {false:.1%} (at most {MOST_WRONG:.0%}): {'kept' if false <= MOST_WRONG else 'BROKEN'}")
    return int(share < LEAST_NAMED or false > MOST_WRONG)


if __name__ == "__main__":
    sys.exit(main())
