"""The hosts and links that are named slow, from made-up measurements."""

import random
import time
from itertools import combinations
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.doctor.diagnosis import Measured, _outliers, find_slow, healthy, table
from unilaunch.doctor.measuring import partners
from unilaunch.record import replace

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


@pytest.mark.parametrize("hosts", [3, 4, 5])
@pytest.mark.parametrize("what", ["product", "memory", "bandwidth"])
def test_a_host_that_is_1_3_x_as_slow_is_named(what: str, hosts: int) -> None:
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


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ({("a", "b"): 0.02, ("b", "c"): 0.05, ("a", "c"): 0.0}, ["b"]),  # all links of b
        ({("a", "b"): 0.02, ("b", "c"): 0.001, ("a", "c"): 0.0}, [("a", "b")]),  # one of them
        ({("a", "b"): 0.02}, [("a", "b")]),  # of two hosts nobody knows which one it is
        ({("a", "b"): 0.002, ("b", "c"): 0.001, ("a", "c"): 0.0}, []),  # few
    ],
)
def test_who_loses_packets_is_named(lost: dict[tuple[str, str], float], named: list[object]) -> None:
    slow = find_slow(Measured(lost=lost))
    assert list(slow) == named
    assert all("loses packets, 2.0% of the TCP segments" in finding.text for (finding,) in slow.values())


def test_hosts_that_are_alike_are_well() -> None:
    for seed in range(200):
        assert find_slow(_measured(seed=seed)) == {}
    assert find_slow(Measured({"a": 1.0}, {"a": 1.0}, {"a": 0.0})) == {}


def test_a_folder_that_cannot_be_written_has_no_speed() -> None:
    """It was 500000000.0 x the time of the others."""
    measured = _measured()
    measured = replace(measured, disk={**measured.disk, "b": 0.0})
    assert [one.text for one in find_slow(measured)["b"]] == [
        "b: nothing can be written in this folder: look for a full or failing disk there"
    ]
    assert table(measured)[2].split()[:6] == ["b", *table(measured)[2].split()[1:5], "-"]


def test_a_latency_must_be_worth_a_word() -> None:
    """50 us that are 65 are the scheduler's; a millisecond more is the network's."""
    assert find_slow(_measured("b", "latency", 1.3)) == {}
    assert list(find_slow(_measured("b", "latency", 20.0))) == ["b"]


@pytest.mark.parametrize("size", range(2, 12))
def test_every_pair_meets_once(size: int) -> None:
    """And in each round of two ranks each names the other, so nobody waits for who waits for another one."""
    found = [partners(rank, size) for rank in range(size)]
    assert all(sorted(found[rank]) == [one for one in range(size) if one != rank] for rank in range(size))
    if size % 2 == 0:
        for turn in range(size - 1):
            assert all(found[found[rank][turn]][turn] == rank for rank in range(size))


def test_what_was_measured_is_shown() -> None:
    lines = table(_measured(hosts=3))
    assert [line.split()[0] for line in lines] == ["host", "a", "b", "c"]
    assert "GFLOP/s" in lines[1]


@given(st.lists(st.floats(0.01, 100.0), max_size=12))
def test_outliers_are_those_of_the_definition(values: list[float]) -> None:
    """The others' median and deviation, which are not computed anew for each entry: 200 hosts have 20,000 pairs."""
    expected = {}
    for key, value in enumerate(values) if len(values) > 1 else ():
        others = [other for one, other in enumerate(values) if one != key]
        usual = median(others)
        spread = 1.4826 * median(abs(other - usual) for other in others)
        if value > 1.2 * usual and value - usual > (4.0 * spread if len(others) > 2 else 0.0):
            expected[key] = value / usual
    assert _outliers(dict(enumerate(values)), 1.2) == expected


@pytest.mark.timed
def test_many_hosts_are_judged_quickly() -> None:
    """It took time proportional to the square of the pairs."""
    pairs = list(combinations(map(str, range(200)), 2))
    bandwidth = {pair: 1e9 + place for place, pair in enumerate(pairs)}
    begin = time.process_time()
    find_slow(Measured(latency=dict.fromkeys(pairs, 1e-5), bandwidth=bandwidth))
    assert time.process_time() - begin < 1.0
