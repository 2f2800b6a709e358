"""What the fault matrix needs: hosts, and a partition that is there already."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import Cluster, lacking
from faults.faults import MPIS, prepare_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the partition of the generated graph in three parts."""
    if missing := [str(path) for path in MPIS.values() if not path.exists()]:
        pytest.skip(f"no {', '.join(missing)}")
    return prepare_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts that share the file system."""
    if missing := lacking():
        pytest.skip(f"no hosts can be made here: this machine lacks {missing}")
    with Cluster(3, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def hosts_to_lose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts of which one will not be there afterwards."""
    if missing := lacking():
        pytest.skip(f"no hosts can be made here: this machine lacks {missing}")
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(3, folder) as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)
