"""The part of the fault matrix that covers what can break differently; `python tests/faults/matrix.py` runs it all."""

from dataclasses import astuple
from pathlib import Path

import pytest

from faults.faults import Cell, covering, run_cell

pytestmark = pytest.mark.timed  # a busy machine is late
#: Other work makes a try slower, never faster. A host that has lost its power has no other try.
TRIES = 3


@pytest.mark.parametrize("cell", covering(), ids=lambda cell: "-".join(astuple(cell)).replace(" ", "_"))
def test_a_fault_ends_the_job(cell: Cell, data: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In time, with the right exit code, the cause named, nothing lost and nothing left running."""
    if missing := cell.lacking_here:
        pytest.skip(f"this machine lacks {missing}")
    fixture = {"power off": "hosts_to_lose"}.get(cell.fault, "three_hosts")
    cluster = request.getfixturevalue(fixture) if "three" in cell.place else None
    for number in range(1 if cell.fault == "power off" else TRIES):
        (folder := tmp_path / str(number)).mkdir()
        outcome = run_cell(cell, folder, data, cluster)
        if any(not fault.startswith("it took") for fault in outcome.faults) or not outcome.faults:
            break
    assert not outcome.faults, outcome.job.console[-3000:]
