"""The training on several hosts: found, counted and trained alike wherever the ranks are.

Where the framework is none of the matter it is numpy, which starts in a tenth of the time.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import EPOCHS, MakeCluster
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY, Finished

#: The hosts here share this machine's processors, so a rank that waits is in the way of one on "another" host.
SHARING = ("--bind-to", "none", "-x", "OMPI_MCA_mpi_yield_when_idle=1", "-x", "PYTHONPATH")


def start_line(mpirun: Path, where: list[str | Path], ranks: int, backend: str = "numpy") -> list[str | Path]:
    """Return the command line of a short training on *ranks* ranks, *where* being mpirun's options."""
    start = [mpirun, "--allow-run-as-root", *where, "-n", str(ranks), *SHARING]
    run = ["run", "--epochs", str(EPOCHS), "--data-dir", "data", "--backend", backend]
    return [*start, sys.executable, "-m", "unilaunch", *run]


def hosts_of(job: Finished) -> list[str]:
    """Return each rank's host, as its log names it."""
    logs = [(path / "stderr").read_text() for path in sorted(job.output.glob("rank.*"))]
    return [match[1] for log in logs if (match := re.search(r" (\w+):\d+ ", log))]


def check_trained(job: Finished, hosts: list[str], curve: list[float]) -> None:
    """Check that *job* ended well, that its ranks were on *hosts*, and that it has the loss curve of one process."""
    result = job.check().result
    assert (result["world_size"], result["num_hosts"]) == (len(hosts), len(set(hosts)))
    assert sorted(hosts_of(job)) == sorted(hosts)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


def test_three_unequal_hosts(cluster: Cluster, mpirun: Path, curve: list[float], tmp_path: Path) -> None:
    """One rank, two and one; nothing runs on afterwards."""
    where: list[str | Path] = ["--hostfile", cluster.hostfile([1, 2, 1], tmp_path)]
    job = cluster.run(0, start_line(mpirun, where, 4), tmp_path, NUMPY)
    check_trained(job, ["node0", "node1", "node1", "node2"], curve)
    assert cluster.left("unilaunch") == []


@pytest.mark.parametrize(("mpirun", "backend"), [("4.1", "mindspore"), ("5.0", "torch")], indirect=["mpirun"])
def test_a_framework_on_two_unequal_hosts(
    cluster: Cluster, mpirun: Path, backend: str, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """Two ranks here and one there, on both frameworks; nothing runs on afterwards."""
    where: list[str | Path] = ["--hostfile", cluster.hostfile([2, 1], tmp_path)]
    job = cluster.run(0, start_line(mpirun, where, 3, backend), tmp_path)
    check_trained(job, ["node0", "node0", "node1"], curve)
    assert job.result["backend"] == backend
    assert cluster.left("unilaunch") == []


def test_hosts_named_on_the_command_line_from_a_head_node(
    cluster: Cluster, mpirun: Path, curve: list[float], tmp_path: Path
) -> None:
    """Mpirun runs on a host that has no rank."""
    line = start_line(mpirun, ["-H", "node0:2,node1:1"], 3)
    check_trained(cluster.run(2, line, tmp_path, NUMPY), ["node0", "node0", "node1"], curve)


@pytest.mark.parametrize("second", ["before", "after", "twin"])
def test_one_of_two_interfaces_leads_nowhere(
    shared_cluster: MakeCluster, mpirun: Path, second: str, curve: list[float], tmp_path: Path
) -> None:
    """The network that connects the hosts is found without a flag: before it, after it, or like docker's bridge."""
    hosts = shared_cluster(2, second_network=second)
    where: list[str | Path] = ["--hostfile", hosts.hostfile([1, 1], tmp_path)]
    job = hosts.run(0, start_line(mpirun, where, 2), tmp_path, NUMPY)
    check_trained(job, ["node0", "node1"], curve)


def test_host_that_is_down_and_comes_back(
    cluster: Cluster, mpirun: Path, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """No rank starts, the host is named, it does not take long, and nothing is in the way of the next start.

    The place where the other hosts have Open MPI is named, as one does where they do not find it.
    """
    hosts = cluster.hostfile([1, 1], tmp_path)
    line = start_line(mpirun, ["--prefix", mpirun.parents[1], "--hostfile", hosts], 2)
    cluster.cut(1)
    try:
        failed = cluster.run(0, line, tmp_path, NUMPY)
    finally:
        cluster.heal(1)
    assert failed.returncode != 0
    assert cluster.addresses[1] in failed.console
    assert not failed.output.exists()
    check_trained(cluster.run(0, line, tmp_path, NUMPY), ["node0", "node1"], curve)


def test_folders_that_are_not_shared(
    make_cluster: MakeCluster, mpirun: Path, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """Each rank logs on its own host, and each host makes the partition for itself; the hosts share no folder."""
    hosts = make_cluster(2, private=[tmp_path])
    line = start_line(mpirun, ["-H", "node0,node1"], 2)
    hosts.run(0, line, tmp_path, NUMPY).check()
    own = [hosts.private(host, tmp_path) / "log_output" for host in range(2)]
    assert [sorted(path.name for path in folder.iterdir()) for folder in own] == [
        [".unilaunch", "checkpoints", "rank.0", "result.json", "spec.json"],
        [".unilaunch", "rank.1"],
    ]
    assert all((hosts.private(host, tmp_path) / "data" / "partitions").is_dir() for host in range(2))
    result = Finished(0, "", "", 0.0, own[0].parent).result
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)
