"""The part of the fault matrix that covers every pair of values; `python tests/faults/matrix.py` runs all of it."""

from dataclasses import astuple
from itertools import combinations
from pathlib import Path

import pytest

from faults.faults import Cell, cells, covering, run_cell


def _name(cell: Cell) -> str:
    return "-".join(astuple(cell)).replace(" ", "_")


def test_every_pair_of_values_is_covered() -> None:
    """But for those that cannot meet, each with its reason."""
    lacking = [cell for cell in cells() if cell.lacking]
    assert all(cell.lacking for cell in lacking)
    covered = {pair for cell in covering() for pair in combinations(astuple(cell), 2)}
    assert covered == {pair for cell in cells() if not cell.lacking for pair in combinations(astuple(cell), 2)}


@pytest.mark.parametrize("cell", covering(), ids=_name)
def test_a_fault_ends_the_job(cell: Cell, data: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In time, with the right exit code, the cause named, nothing lost and nothing left running."""
    fixture = {"power off": "hosts_to_lose"}.get(cell.fault, "three_hosts")
    cluster = request.getfixturevalue(fixture) if "three" in cell.place else None
    outcome = run_cell(cell, tmp_path, data, cluster)
    if outcome.only_late and cell.fault != "power off":  # the machine may have been busy: in time, or late again?
        (tmp_path / "again").mkdir()
        outcome = run_cell(cell, tmp_path / "again", data, cluster)
    assert not outcome.faults, outcome.job.console[-3000:]
