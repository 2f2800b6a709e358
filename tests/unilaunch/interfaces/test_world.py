"""Local and node ranks, counted from the hosts that the ranks name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.interfaces.world import LauncherInfo, World, count_world


def _world(rank: int, hosts: list[str]) -> World:
    found = LauncherInfo("test", rank, len(hosts), 0, 1, "run", {})
    return count_world(found, hosts, hosts[rank])


@pytest.mark.parametrize(("hosts", "local_ranks", "node_ranks"), [
    ("abab", [0, 0, 1, 1], [0, 1, 0, 1]), ("baab", [0, 0, 1, 1], [0, 1, 1, 0]),
    ("aabbbb", [0, 1, 0, 1, 2, 3], [0, 0, 1, 1, 1, 1]),
], ids=["round-robin", "interleaved", "slots 2 and 4"])  # fmt: skip
def test_placements(hosts: str, local_ranks: list[int], node_ranks: list[int]) -> None:
    """Right also where rank % n and rank // n are wrong."""
    worlds = [_world(rank, list(hosts)) for rank in range(len(hosts))]
    assert [world.local_rank for world in worlds] == local_ranks
    assert [world.node_rank for world in worlds] == node_ranks
    assert {world.num_hosts for world in worlds} == {len(set(hosts))}


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_local_ranks_count_each_host(hosts: list[str]) -> None:
    """On every host the local ranks are 0 to local_size - 1; rank 0 is on node 0."""
    worlds = [_world(rank, hosts) for rank in range(len(hosts))]
    assert worlds[0].node_rank == 0
    for host in set(hosts):
        there = [world for world in worlds if world.host == host]
        assert sorted(world.local_rank for world in there) == list(range(len(there)))
        assert {world.local_size for world in there} == {len(there)}
        assert len({world.node_rank for world in there}) == 1


@pytest.mark.parametrize(("local_size", "heads", "expected"), [
    (2, (), True), (1, (), False), (None, ("127.0.0.1",), True), (None, ("::1",), True),
    (None, ("localhost",), True), (None, ("node0", "127.0.0.1"), False),
])  # fmt: skip
def test_one_host(local_size: int | None, heads: tuple[str, ...], expected: bool) -> None:  # noqa: FBT001
    """The launcher counts two of two ranks here, or rank 0 can be reached on this host only."""
    assert LauncherInfo("test", 0, 2, None, local_size, "run", {}, rank_0_hosts=heads).one_host == expected
