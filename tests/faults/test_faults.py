"""The part of the fault matrix that covers every pair of values; `python tests/faults/matrix.py` runs all of it."""

from dataclasses import astuple
from pathlib import Path

import pytest

from faults.faults import Cell, cells, covering, pairs, run_cell

pytestmark = pytest.mark.alone  # a busy machine is late


def _name(cell: Cell) -> str:
    return "-".join(astuple(cell)).replace(" ", "_")


def test_every_pair_of_values_is_covered() -> None:
    """But for those that cannot meet, each with its reason; of the frameworks, each at every moment."""
    possible = {pair for cell in cells() if not cell.lacking for pair in pairs(cell)}
    assert {pair for cell in covering() for pair in pairs(cell)} == possible
    at_moments = {(cell.framework, cell.moment) for cell in covering()}
    assert at_moments >= {(cell.framework, cell.moment) for cell in cells()}


@pytest.mark.parametrize("cell", covering(), ids=_name)
def test_a_fault_ends_the_job(cell: Cell, data: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In time, with the right exit code, the cause named, nothing lost and nothing left running."""
    fixture = {"power off": "hosts_to_lose"}.get(cell.fault, "three_hosts")
    cluster = request.getfixturevalue(fixture) if "three" in cell.place else None
    outcome = run_cell(cell, tmp_path, data, cluster)
    assert not outcome.faults, outcome.job.console[-3000:]
