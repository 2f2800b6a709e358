"""The doctor visits real hosts: well ones, one that is down, one with another version, one without the interpreter."""

import re
import sys
from pathlib import Path

import pytest

from cluster.conftest import UNILAUNCH, MakeCluster
from cluster.hosts import Cluster
from jobs.mpirun import Finished

ALL = ["-H", "node0:1,node1:1,node2:1"]


def _visit(cluster: Cluster, folder: Path, *options: str | Path) -> Finished:
    return cluster.run(0, [*UNILAUNCH, "doctor", "--allow-run-as-root", *options], folder)


def test_hosts_that_are_ready(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """One line, with the address at which all reach rank 0; nothing is left behind."""
    hostfile = cluster.hostfile([2, 1, 1], tmp_path)
    (line,) = _visit(cluster, tmp_path, "--hostfile", hostfile, "--mpirun", mpirun).check().stdout.splitlines()
    assert line.startswith("all 3 hosts are ready: Python ")
    assert f"rank 0 reached at {cluster.addresses[0]} (eth0)" in line
    assert [path.name for path in tmp_path.iterdir()] == [hostfile.name]


@pytest.mark.parametrize("mpirun", ["4.1"], indirect=True)  # 5.0: test_a_start_at_which_no_rank_begins_has_a_limit
def test_what_parts_hosts_is_named(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """A host that is down; one firewall that only MPI would meet, and one at which mpirun hangs though ssh passes."""
    with cluster.without(2):
        down = _visit(cluster, tmp_path, *ALL)
    with cluster.firewall((1, 2)):
        parted = _visit(cluster, tmp_path, *ALL)
    with cluster.firewall((0, 1), ssh=True):
        closed = _visit(cluster, tmp_path, "-H", "node0,node1", "--mpirun", mpirun)
    assert [job.returncode for job in (down, parted, closed)] == [1, 1, 1]
    assert re.fullmatch(r"wrong  node2: ssh node2: .*ssh-copy-id node2.*\n", down.stdout)
    assert [line.partition(":")[0] for line in parted.stdout.splitlines()] == [
        "wrong  no TCP connection from node1 to node2", "wrong  no TCP connection from node2 to node1"
    ]  # fmt: skip
    (line,) = closed.stdout.splitlines()
    assert "must reach this one at every TCP port of its net.ipv4.ip_local_port_range" in line


def test_a_host_without_the_interpreter_is_named(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """As when an environment was made on one host only."""
    (bin_ := tmp_path / "bin").mkdir()
    hosts = make_cluster(2, private=[bin_])
    (hosts.private(0, bin_) / "python").symlink_to(sys.executable)
    line = [bin_ / "python", "-m", "unilaunch", "doctor", "--allow-run-as-root", "-H", "node0,node1"]
    job = hosts.run(0, line, tmp_path, {"PYTHONPATH": ":".join(path for path in sys.path if path)})
    assert job.returncode == 1
    assert f"wrong  node1: no {bin_ / 'python'} there: make the same environment" in job.stdout


def test_a_host_behind_a_slow_port_is_named_and_left_out(cluster: Cluster, tmp_path: Path) -> None:
    """The others' hostfile is written, with their slots; with real rates of a real network."""
    cluster.slow_down(2, 8)
    try:
        hostfile = cluster.hostfile([2, 1, 1], tmp_path)
        job = _visit(cluster, tmp_path, "--hostfile", hostfile, "--healthy", "healthy")
    finally:
        cluster.slow_down(2, 0)
    address, healthy = re.escape(cluster.addresses[2]), tmp_path / "healthy"
    assert job.returncode
    assert re.search(rf"(?m)^wrong +{address}: slow network \(bandwidth\), [\d.]+ x the time", job.stdout)
    assert re.search(rf"(?m)^{address} +[\d.]+ GFLOP/s +[\d.]+ GB/s +\d+ MB/s +\d+ us +\d+ MB/s", job.stdout)
    # On a busy machine the others are slow too.
    assert not healthy.exists() or cluster.addresses[2] not in healthy.read_text()


def test_a_host_that_loses_packets_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Though its best windows are as fast as the others': the segments that were sent again are counted."""
    cluster.lose(10, host=2)
    try:
        job = _visit(cluster, tmp_path, *ALL, "--measure")
    finally:
        cluster.lose(0)
    assert re.search(r"(?m)^wrong +node2: loses packets, [\d.]+% of the TCP segments", job.stdout)
    assert not re.search(r"(?m)^wrong +node[01]: loses", job.stdout)
