"""The part of the fault matrix that covers every pair of values; `python tests/faults/matrix.py` runs all of it."""

from dataclasses import astuple
from itertools import combinations, product
from pathlib import Path

import pytest

from faults.faults import (
    BY_HAND,
    DIRECT,
    DIRECT_PLACES,
    FAULTS,
    FRAMEWORKS,
    MOMENTS,
    MPIS,
    PLACES,
    STARTS,
    Cell,
    covering,
    run_cell,
)

pytestmark = pytest.mark.timed  # a busy machine is late
#: Other work makes a try slower, never faster. A host that has lost its power has no other try.
TRIES = 3


def _name(cell: Cell) -> str:
    return "-".join(astuple(cell)).replace(" ", "_")


def test_every_pair_of_values_is_covered() -> None:
    """The pairs are counted here from what each fault declares; the cells are few, each framework has every moment."""
    chosen = [set(astuple(cell)) for cell in covering()]
    free = (MOMENTS, STARTS, PLACES)
    pairs = [{one, other} for first, second in combinations(free, 2) for one in first for other in second]
    pairs = [pair for pair in pairs if DIRECT not in pair or not pair & {*PLACES} - {*DIRECT_PLACES}]
    pairs = [pair for pair in pairs if BY_HAND not in pair or not pair & {*MPIS}]
    least = 0
    for name, fault in FAULTS.items():
        places = [place for place in PLACES if fault.places in place]
        starts = [start for start in STARTS if start != DIRECT or {*places} & {*DIRECT_PLACES}]
        pairs += [{name, value} for value in (*fault.moments, *starts, *places)]
        least += max(len(fault.moments), len(places))
        assert fault.why or (len(fault.moments), len(places)) == (len(MOMENTS), len(PLACES)), f"{name}: why not always?"
    for cell in covering():
        assert FAULTS[cell.fault].places in cell.place, f"{cell}: cannot be"
        assert cell.moment in FAULTS[cell.fault].moments, f"{cell}: cannot be"
    assert [pair for pair in pairs if not any(pair <= cell for cell in chosen)] == []
    assert least <= len(chosen) <= 1.1 * least
    real = [(cell.framework, cell.moment) for cell in covering() if cell.framework in FRAMEWORKS]
    assert sorted(real) == sorted(product(FRAMEWORKS, MOMENTS))


@pytest.mark.parametrize("cell", covering(), ids=_name)
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
