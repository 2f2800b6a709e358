"""The hosts that the other tests stand on: apart where they should be, and gone without a trace."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.conftest import MakeCluster
from cluster.hosts import Cluster

MAKER = """
import os, sys, time
from pathlib import Path
from cluster.hosts import Cluster
with Cluster(1, Path(sys.argv[1])) as cluster:
    cluster.start(0, ["sleep", "1000.25"], Path("/"))
    while not cluster.processes(0):
        time.sleep(0.01)
    print(*cluster.processes(0), flush=True)
    os._exit(9)
"""


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_host_has_its_own_name_address_and_memory(cluster: Cluster, tmp_path: Path) -> None:
    """Ssh from one to the other shows another machine, with the same files."""
    (tmp_path / "file").write_text("shared\n")
    mine = f"hostname; hostname -I; ls /dev/shm; cat {tmp_path / 'file'}"
    cluster.run(0, ["touch", "/dev/shm/of_node0"], tmp_path).check()  # noqa: S108
    own = cluster.run(0, ["sh", "-c", mine], tmp_path).check()
    other = cluster.run(0, ["ssh", "node1", mine], tmp_path).check()
    assert own.stdout.split() == ["node0", "10.78.0.10", "of_node0", "shared"]
    assert other.stdout.split() == ["node1", "10.78.0.11", "shared"]


def test_private_folder_is_each_hosts_own(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """What one host writes there no other sees."""
    hosts = make_cluster(2, private=[tmp_path])
    hosts.run(0, ["touch", "file"], tmp_path).check()
    assert hosts.run(1, ["ls"], tmp_path).check().stdout == ""
    assert [path.name for path in hosts.private(0, tmp_path).iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == []


def test_second_network_leads_nowhere(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Both interfaces are up with an address, and one of them reaches nobody."""
    hosts = make_cluster(2, second_network="after")
    listed = hosts.run(0, ["ip", "-brief", "-4", "address"], tmp_path).check().stdout.splitlines()
    assert [line.split()[::2] for line in listed[1:]] == [["eth0@if3", "10.78.0.10/24"], ["eth1@if4", "10.78.1.10/24"]]
    assert hosts.run(0, ["ssh", "10.78.0.11", "hostname"], tmp_path).stdout == "node1\n"
    assert hosts.run(0, ["ssh", "-o", "StrictHostKeyChecking=no", "10.78.1.11", "hostname"], tmp_path).returncode == 255


def test_a_delayed_host_answers_later_and_is_as_before_afterwards(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """A megabyte passes whole: what the interfaces leave to the hardware is done at the other end."""
    hosts = make_cluster(2)
    (tmp_path / "sent").write_bytes(os.urandom(1 << 20))
    copy = ["sh", "-c", f"ssh node1 tee {tmp_path}/got < sent > came && cmp sent got && cmp sent came"]
    with hosts.delay(1, 0.1):
        delayed = hosts.run(0, copy, tmp_path).check().seconds
    assert hosts.run(0, copy, tmp_path).check().seconds < delayed
    assert delayed > 1.0  # a handshake has several round trips of 0.2 s


def test_power_off_ends_one_host_only(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """What ran there has gone, and nothing else, whatever comes afterwards."""
    hosts = make_cluster(2)
    running = [hosts.start(host, ["sleep", "1000"], tmp_path) for host in range(2)]
    _until(lambda: [[*hosts.processes(host).values()] for host in range(2)] == [["sleep 1000"]] * 2)
    hosts.power_off(1)
    assert running[1].finish(60).returncode != 0
    assert hosts.processes(1) == {}
    assert list(hosts.processes(0).values()) == ["sleep 1000"]
    hosts.sweep()
    assert running[0].finish(60).returncode != 0
    hosts.run(0, ["hostname"], tmp_path).check()


def test_deadline_ends_what_runs_on_every_host(cluster: Cluster, tmp_path: Path) -> None:
    """Also what was started through ssh, and what asks not to be told of the end."""
    running = cluster.start(0, ["ssh", "node1", "nohup setsid sleep 1000 & sleep 1000"], tmp_path)
    _until(lambda: [*cluster.processes(1).values()].count("sleep 1000") == 2)
    with pytest.raises(AssertionError, match="still running after 1 s"):
        running.finish(1)
    _until(lambda: [cluster.processes(host) for host in range(3)] == [{}, {}, {}])


def test_maker_that_crashes_takes_its_hosts_with_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """No process is left of a host whose maker ended without a word."""
    tests = str(Path(__file__).parents[1])
    made = subprocess.run(
        [sys.executable, "-c", MAKER, str(tmp_path)],
        capture_output=True, text=True, env={"PYTHONPATH": tests, "PATH": os.defpath}, check=False,
    )  # fmt: skip
    assert made.returncode == 9, made.stderr
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in made.stdout.split()))
