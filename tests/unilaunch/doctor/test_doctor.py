"""The doctor's findings from made-up facts, and the hosts and links that are slow from made-up measurements."""

import random
from itertools import combinations
from typing import Any

import pytest

from unilaunch.doctor.diagnosis import HostFacts, Measured, diagnose, find_slow, healthy, unconnected

PACKAGES = {"torch": "2.13.0", "mindspore": "2.10.0", "numpy": "1.26.4", "unilaunch": "0.1.0"}
WELL: dict[str, Any] = {
    "python": "3.11.7", "packages": PACKAGES, "faults": [], "devices": {"cuda": 0, "npu": 0}, "open_files": 4096,
    "locked_memory": -1, "shared_memory": 1 << 30, "shares_folder": True, "full": [],
}  # fmt: skip


def _visit(host: str, slots: int = 4, skew: float = 0.0, named: str = "", **changed: Any) -> HostFacts:
    return HostFacts(host, slots, {**WELL, **changed}, skew, named or host)


@pytest.mark.parametrize(("changed", "words", "stops"), [
    ({"python": "3.12.1"}, "b has Python 3.12.1, the others 3.11.7", True),
    ({"packages": PACKAGES | {"torch": "2.1"}}, "b has torch 2.1, the others 2.13.0: pip install torch==2.13.0", True),
    ({"packages": {"torch": "2.13.0", "numpy": "1.26.4", "unilaunch": "0.1.0"}}, "b has no mindspore", True),
    ({"packages": PACKAGES | {"pymetis": "1"}}, "b has pymetis 1, the others have none", True),
    ({"devices": {"cuda": 2, "npu": 0}}, "b has slots=4 and 2 cuda devices: write slots=2", True),
    ({"open_files": 256}, "b: at most 256 open files", False),
    ({"devices": {"cuda": 8, "npu": 0}, "locked_memory": 65536}, "b: locked memory is limited", False),
    ({"shared_memory": 8 << 20}, "b: /dev/shm has 8 MB", False),
    ({"skew": -3.0}, "b: its clock is -3.0 s off", False),
    ({"named": "a"}, "a, b all call themselves a", False),
    ({"full": ["/d (TMPDIR)"]}, "b: the disk is full: make room in /d (TMPDIR), or name another folder", True),
    ({"shares_folder": False}, "b: other files than here", False),
])  # fmt: skip
def test_one_host_that_differs_is_named(changed: dict[str, Any], words: str, stops: bool) -> None:  # noqa: FBT001
    (finding,) = diagnose([_visit("a"), _visit("b", **changed), _visit("c"), HostFacts("silent", 4, {})])
    assert words in finding.text
    assert finding.stops is stops
    assert finding.hosts == ("b",) or not stops


@pytest.mark.parametrize(("failed", "named"), [
    (["bc", "cb"], ["from b to c", "from c to b"]), (["ac", "bc", "ca", "cb"], ["from a, b to c", "from c to a, b"]),
    (["ca"], ["from c to a"]),
])  # fmt: skip
def test_hosts_that_cannot_connect_are_named(failed: list[str], named: list[str]) -> None:
    """In as few lines as there are firewalls."""
    findings = [finding.text for finding in unconnected([(pair[0], pair[1]) for pair in failed])]
    assert [text.partition(":")[0] for text in findings] == [f"no TCP connection {each}" for each in named]


HOSTS = ["a", "b", "c", "d", "e"]


def _measured(slow: object = None, what: str = "", factor: float = 1.3, hosts: int = 5, seed: int = 0) -> Measured:
    """Return measurements with 3 % of noise, in which a host or a pair is *factor* times as slow at *what*."""
    names, chosen = HOSTS[:hosts], random.Random(seed)  # noqa: S311
    pairs = list(combinations(names, 2))

    def rate(usual: float, kind: str, who: object) -> float:
        hit = kind == what and (slow in who if isinstance(who, tuple) and isinstance(slow, str) else slow == who)
        return usual / (factor if hit else 1.0) * chosen.uniform(0.97, 1.03)

    return Measured(
        {host: rate(4e10, "product", host) for host in names},
        {host: rate(1e10, "memory", host) for host in names},
        {host: rate(5e8, "disk", host) for host in names},
        {pair: 1 / rate(2e4, "latency", pair) for pair in pairs},
        {pair: rate(1e9, "bandwidth", pair) for pair in pairs},
    )


@pytest.mark.parametrize(("hosts", "what", "factor"), [
    (3, "product", 1.3), (4, "memory", 1.3), (5, "bandwidth", 1.3), (3, "bandwidth", 1.3), (5, "latency", 20.0),
])  # fmt: skip
def test_a_host_that_is_1_3_x_as_slow_is_named(hosts: int, what: str, factor: float) -> None:
    """It alone, and left out of the hosts that are well. 50 us that are 65 are the scheduler's, not the network's."""
    for seed in range(20):
        slow = find_slow(_measured("b", what, factor, hosts, seed))
        assert list(slow) == ["b"]
        assert healthy(HOSTS[:hosts], slow) == [host for host in HOSTS[:hosts] if host != "b"]
        assert find_slow(_measured(seed=seed)) == find_slow(_measured("b", "latency", 1.3, seed=seed)) == {}


def test_a_slow_link_is_named_and_one_of_its_hosts_left_out() -> None:
    slow = find_slow(_measured(("b", "d"), "bandwidth", 2.0))
    assert list(slow) == [("b", "d")]
    assert slow["b", "d"][0].text.startswith("b - d: slow link (bandwidth), ")
    assert healthy(HOSTS, slow) == ["a", "b", "c", "e"]


@pytest.mark.parametrize(("lost", "named"), [
    ({("a", "b"): 0.02, ("b", "c"): 0.05, ("a", "c"): 0.0}, ["b"]),  # all links of b
    ({("a", "b"): 0.02, ("b", "c"): 0.001, ("a", "c"): 0.0}, [("a", "b")]),  # one of them
    ({("a", "b"): 0.02}, [("a", "b")]),  # of two hosts nobody knows which one it is
    ({("a", "b"): 0.002, ("b", "c"): 0.001, ("a", "c"): 0.0}, []),  # few
])  # fmt: skip
def test_who_loses_packets_is_named(lost: dict[tuple[str, str], float], named: list[object]) -> None:
    slow = find_slow(Measured(lost=lost))
    assert list(slow) == named
    assert all("loses packets, 2.0% of the TCP segments" in finding.text for (finding,) in slow.values())
