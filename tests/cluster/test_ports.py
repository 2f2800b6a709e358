"""A firewall that opens a range of ports: with that range in the kernel, docs/hosts.md, every job stays in it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import MakeCluster
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY

LAUNCH = [sys.executable, "-m", "unilaunch", "launch"]
PROGRAM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def narrow(make_cluster: MakeCluster) -> Iterator[Cluster]:
    """Two hosts between which ssh and 200 ports pass."""
    hosts = make_cluster(2)
    for host in range(2):
        hosts.take_ports(host, "60000 60199")
    with hosts.firewall((0, 1), ports="60000-60199"):
        yield hosts


@pytest.mark.parametrize("mpirun", ["5.0"], indirect=True)  # the daemons' ports of both are those of the training
def test_a_script_of_torch(narrow: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """Ports of mpirun's daemons, of our own connections, of gloo and of the store of torch."""
    (tmp_path / "sum.py").write_text(PROGRAM)
    options = ["--mpirun", str(mpirun), "--allow-run-as-root", "-H", "node0:1,node1:1", "--timeout", "60"]
    assert narrow.run(0, [*LAUNCH, *options, "sum.py"], tmp_path).check().stdout == "sum 2\n"


def test_a_training_over_mpi(narrow: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """And of Open MPI."""
    options = ["--mpirun", str(mpirun), "--allow-run-as-root", "-H", "node0:1,node1:1", "--timeout", "60"]
    words = ["gcn", "--epochs", "2", "--data-dir", "data", "--backend", "numpy"]
    assert narrow.run(0, [*LAUNCH, *options, *words], tmp_path, NUMPY).check().result["world_size"] == 2


def test_a_start_by_hand(narrow: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(PROGRAM)
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node0", "--master-port", "60199"]
    line = [*LAUNCH, *options, "--timeout", "60", "--node-rank"]
    secret = {"UNILAUNCH_SECRET": "3f0a8d6e71b24c55"}
    jobs = [narrow.start(node, [*line, str(node), "sum.py"], tmp_path, secret) for node in range(2)]
    ended = [job.finish().check() for job in jobs]
    assert ended[0].stdout == "sum 2\n"
