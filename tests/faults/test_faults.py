"""The part of the fault matrix that covers what can break differently; `python tests/faults/matrix.py` runs it all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import Cluster, lacking
from faults.faults import MPIS, Cell, covering, prepare_data, run_cell

pytestmark = pytest.mark.timed  # a busy machine is late
#: Other work makes a try slower, never faster. A host that has lost its power has no other try.
TRIES = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the partition of the generated graph in three parts."""
    if missing := [str(path) for path in MPIS.values() if not path.exists()]:
        pytest.skip(f"no {', '.join(missing)}")
    return prepare_data(tmp_path_factory.mktemp("data"))


def _three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts that share the file system."""
    if missing := lacking():
        pytest.skip(f"no hosts can be made here: this machine lacks {missing}")
    with Cluster(3, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


three_hosts = pytest.fixture(_three_hosts, scope="module", name="three_hosts")
hosts_to_lose = pytest.fixture(_three_hosts, name="hosts_to_lose")


@pytest.mark.parametrize("cell", covering(), ids=lambda cell: "-".join(cell).replace(" ", "_"))
def test_a_fault_ends_the_job(cell: Cell, data: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In time, with the right exit code, the cause named, nothing lost and nothing left running."""
    if missing := cell.lacking_here:
        pytest.skip(f"this machine lacks {missing}")
    is_lost = cell.fault == "power off"
    fixture = "hosts_to_lose" if is_lost else "three_hosts"
    cluster = request.getfixturevalue(fixture) if "three" in cell.place else None
    for number in range(1 if is_lost else TRIES):
        (folder := tmp_path / str(number)).mkdir()
        outcome = run_cell(cell, folder, data, cluster)
        if any(not fault.startswith("it took") for fault in outcome.faults) or not outcome.faults:
            break
    assert not outcome.faults, outcome.job.console[-3000:]
