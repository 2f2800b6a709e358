"""What the tests on several hosts share: the hosts, both Open MPI versions, and the loss curve of one process."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.hosts import Cluster, lacking
from jobs.conftest import LAUNCHERS, find_launcher
from jobs.mpirun import NUMPY, Finished, alone

MakeCluster = Callable[..., Cluster]
#: Of the trainings that are compared with `curve`.
EPOCHS = 8
PROGRAMS = Path(__file__).parents[1] / "jobs" / "programs"
#: The folder of what breaks a rank; see tests/faults/inject.
INJECT = Path(__file__).parents[1] / "faults" / "inject"
#: The hosts here share this machine's processors, so a rank that waits is in the way of one on "another" host.
SHARING = ["--bind-to", "none", "-x", "OMPI_MCA_mpi_yield_when_idle=1", "--allow-run-as-root"]
LAUNCH = [sys.executable, "-m", "unilaunch", "launch", *SHARING]


def check_trained(job: Finished, size: int, hosts: int, curve: list[float], launcher: str = "") -> None:
    """Check that *job* ended well on so many hosts, and that it has the loss curve of one process."""
    result = job.check().result
    assert (result["world_size"], result["num_hosts"]) == (size, hosts)
    assert result["launcher"].startswith(launcher)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


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
def shared_cluster(make_cluster: MakeCluster) -> MakeCluster:
    """Make special hosts once, for all tests of a file that leave them as they are."""
    return cache(make_cluster)


@pytest.fixture(scope="session")
def cluster(make_cluster: MakeCluster) -> Cluster:
    """Three hosts that share the file system; a test that cuts one off reconnects it."""
    return make_cluster(3)


@pytest.fixture(params=LAUNCHERS, ids=lambda version: f"openmpi-{version}", scope="session")
def mpirun(request: pytest.FixtureRequest) -> Path:
    """Each Open MPI version that unilaunch is for."""
    return find_launcher(request.param).path


@pytest.fixture(scope="session")
def mpiruns() -> Mapping[str, Path]:
    """All Open MPI versions that unilaunch is for."""
    return {version: find_launcher(version).path for version in LAUNCHERS}


@pytest.fixture(scope="session")
def curve(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses in one process, with numpy: every framework has them, and it starts quickly."""
    line = ["-m", "unilaunch", "run", "--epochs", str(EPOCHS), "--data-dir", "data", "--backend", "numpy"]
    job = alone(line, tmp_path_factory.mktemp("alone"), NUMPY).check()
    losses: list[float] = job.result["loss"]
    return losses
