"""Ranks' hosts from a rankfile."""

from pathlib import Path

import pytest

from unilaunch.errors import SpecError
from unilaunch.job.mapping import map_ranks


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
