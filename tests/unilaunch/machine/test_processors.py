"""The processors of the ranks of a direct start: whole cores, all of them, in the order of the memory nodes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.machine.devices import split_processors


def _machine(folder: Path, cores: list[tuple[int, int]]) -> Path:
    """Describe a machine as the kernel does: the memory node and the core of each processor."""
    for processor, (node, core) in enumerate(cores):
        topology = folder / "cpu" / f"cpu{processor}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core}\n")
        (topology.parent / f"node{node}").mkdir()
    return folder


@pytest.mark.parametrize(("ranks", "cores", "expected"), [
    (2, [(0, 0), (0, 1), (0, 2), (0, 3)], [{0, 1}, {2, 3}]),
    (2, [(0, 0), (1, 1), (0, 2), (1, 3)], [{0, 2}, {1, 3}]),  # alternating memory nodes
    (2, [(0, 0), (0, 1), (0, 0), (0, 1)], [{0, 2}, {1, 3}]),  # two threads of each core
    (3, [(0, 0), (0, 1)], [{0, 1}] * 3),
])  # fmt: skip
def test_each_rank_has_whole_cores_of_one_memory_node(
    ranks: int, cores: list[tuple[int, int]], expected: list[set[int]], tmp_path: Path
) -> None:
    """More ranks than cores share all of them."""
    assert split_processors(ranks, range(len(cores)), _machine(tmp_path, cores)) == expected


@given(st.integers(1, 40), st.sets(st.integers(0, 63), min_size=1))
def test_every_allowed_processor_is_used_and_no_other(ranks: int, allowed: set[int]) -> None:
    """By one rank, or by all if there are too few."""
    shares = split_processors(ranks, allowed, Path("/nowhere"))
    assert len(shares) == ranks
    assert set().union(*shares) == allowed
    assert ranks > len(allowed) or sum(map(len, shares)) == len(allowed)
