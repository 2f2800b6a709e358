"""The hosts and links that are named slow, from made-up measurements."""

import random
from itertools import combinations

import pytest

from unilaunch.doctor.diagnosis import Measured, find_slow, healthy

HOSTS = ["a", "b", "c", "d", "e"]


def _measured(
    slow: object = None, what: str = "", factor: float = 1.3, noise: float = 0.03, hosts: int = 5, seed: int = 0
) -> Measured:
    """Return measurements with some noise, in which a host or a pair is *factor* times as slow at *what*."""
    names, chosen = HOSTS[:hosts], random.Random(seed)  # noqa: S311
    pairs = list(combinations(names, 2))

    def rate(usual: float, kind: str, who: object) -> float:
        hit = kind == what and (slow in who if isinstance(who, tuple) and isinstance(slow, str) else slow == who)
        return usual / (factor if hit else 1.0) * chosen.uniform(1 - noise, 1 + noise)

    return Measured(
        {host: rate(4e10, "product", host) for host in names},
        {host: rate(1e10, "memory", host) for host in names},
        {host: rate(5e8, "disk", host) for host in names},
        {pair: 1 / rate(2e4, "latency", pair) for pair in pairs},
        {pair: rate(1e9, "bandwidth", pair) for pair in pairs},
    )


@pytest.mark.parametrize(("hosts", "what"), [(3, "product"), (4, "memory"), (5, "bandwidth"), (3, "bandwidth")])
def test_a_host_that_is_1_3_x_as_slow_is_named(hosts: int, what: str) -> None:
    """It alone, and left out of the hosts that are well."""
    for seed in range(20):
        slow = find_slow(_measured("b", what, hosts=hosts, seed=seed))
        assert list(slow) == ["b"]
        assert healthy(HOSTS[:hosts], slow) == [host for host in HOSTS[:hosts] if host != "b"]


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


def test_hosts_that_are_alike_are_well() -> None:
    for seed in range(100):
        assert find_slow(_measured(seed=seed)) == {}
    assert find_slow(Measured({"a": 1.0}, {"a": 1.0}, {"a": 0.0})) == {}


def test_a_latency_must_be_worth_a_word() -> None:
    """50 us that are 65 are the scheduler's; a millisecond more is the network's."""
    assert find_slow(_measured("b", "latency", 1.3)) == {}
    assert list(find_slow(_measured("b", "latency", 20.0))) == ["b"]
