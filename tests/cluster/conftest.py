"""What the tests on several hosts share: the hosts, both Open MPI versions, and the loss curve of one process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.hosts import Cluster, Line, lacking
from jobs.conftest import LAUNCHERS, find_launcher
from jobs.mpirun import NUMPY, Finished, unilaunch

MakeCluster = Callable[..., Cluster]
#: Parametrize a test whose cases are for one Open MPI each.
by_mpirun = partial(pytest.mark.parametrize, indirect=["mpirun"])
PROGRAMS = Path(__file__).parents[1] / "jobs" / "programs"
#: The folder of what breaks a rank; see tests/faults/inject.
INJECT = Path(__file__).parents[1] / "faults" / "inject"
#: The hosts here share this machine's processors, so a rank that waits is in the way of one on "another" host.
SHARING = ["--bind-to", "none", "-x", "OMPI_MCA_mpi_yield_when_idle=1", "--allow-run-as-root"]
UNILAUNCH = [sys.executable, "-m", "unilaunch"]
LAUNCH = [*UNILAUNCH, "launch", *SHARING]
SECRET = {"UNILAUNCH_SECRET": "3f0a8d6e71b24c55"}
EPOCHS = 8
#: The training whose curve is compared with `curve`. Numpy starts in a tenth of a framework's time.
TRAINING = ["--epochs", str(EPOCHS), "--data-dir", "data", "--backend", "numpy"]


def check_trained(job: Finished, size: int, hosts: int, curve: list[float], launcher: str = "") -> None:
    """Check that *job* ended well on so many hosts, and that it has the loss curve of one process."""
    result = job.check().result
    assert (result["world_size"], result["num_hosts"]) == (size, hosts)
    assert result["launcher"].startswith(launcher)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


def bare(mpirun: Path, *where: str | Path) -> Line:
    """Return the line of the training under a bare mpirun, *where* being its options; more may follow."""
    return [mpirun, *where, *SHARING, "-x", "PYTHONPATH", *UNILAUNCH, "run", *TRAINING]


@pytest.fixture(scope="session")
def make_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """Make special hosts: `make_cluster(2, private=[folder])`. They are up to the end of the session."""
    if missing := lacking():
        pytest.skip(f"no hosts can be made here: this machine lacks {missing}")
    with ExitStack() as kept:

        def make(number: int, **options: Any) -> Cluster:
            return kept.enter_context(Cluster(number, tmp_path_factory.mktemp("cluster"), **options))

        yield make


@pytest.fixture(scope="session")
def cluster(make_cluster: MakeCluster) -> Cluster:
    """Three hosts that share the file system; a test that cuts one off reconnects it."""
    return make_cluster(3)


@pytest.fixture(params=LAUNCHERS, ids=lambda version: f"openmpi-{version}", scope="session")
def mpirun(request: pytest.FixtureRequest) -> Path:
    """Each Open MPI version that unilaunch is for."""
    return find_launcher(request.param).path


@pytest.fixture(scope="session")
def openmpi5() -> Path:
    """The Open MPI of the wheel, for what does not depend on the version."""
    return find_launcher("5.0").path


@pytest.fixture(scope="session")
def curve(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses in one process."""
    losses: list[float] = unilaunch(["run", *TRAINING], tmp_path_factory.mktemp("alone"), NUMPY).check().result["loss"]
    return losses
