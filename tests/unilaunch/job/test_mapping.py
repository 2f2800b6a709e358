"""Where ranks go: from a rankfile, and where there are more ranks than slots."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.errors import SpecError
from unilaunch.job.plan import make_room, map_ranks
from unilaunch.spec.hostfile import Host


def test_a_rankfile_says_it_rank_by_rank(tmp_path: Path) -> None:
    """In any order, with comments, for as many ranks as there are."""
    path = tmp_path / "ranks"
    path.write_text("# a comment\nrank 1=b slot=0\nrank 0 = a slots=0-1\nrank 2=a slot=1\n")
    assert map_ranks({"a": 1, "b": 1}, 3, f"rankfile:file={path}") == ["a", "b", "a"]
    with pytest.raises(SpecError, match=r"no line for rank 3 of 4; expected 'rank 3=HOST slot=N'"):
        map_ranks({"a": 4}, 4, f"rankfile:file={path}")


def test_a_rankfile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="none: cannot be read"):
        map_ranks({"a": 4}, 4, f"rankfile:file={tmp_path}/none")


@given(
    st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(5, 9)), min_size=1, max_size=6), st.integers(1, 60)
)
def test_room_is_made_for_all_ranks(told: list[tuple[int, int | None]], nprocs: int) -> None:
    """No host has less than it said, or more than its most; what is added is even; all get a slot if they can."""
    hosts = [Host(f"h{place}", slots, most) for place, (slots, most) in enumerate(told)]
    made = make_room(hosts, nprocs)
    added = [(one.slots or 0) - slots for one, (slots, _) in zip(made, told, strict=True)]
    assert min(added) >= 0
    assert all((one.slots or 0) <= (one.max_slots or nprocs + 5) for one in made)
    free = [more for more, one in zip(added, made, strict=True) if one.slots != one.max_slots]
    assert not free or max(added) - min(free) <= 1
    total = sum(slots for slots, _ in told)
    assert sum(added) == max(0, nprocs - total) or all(one.slots == one.max_slots for one in made)
