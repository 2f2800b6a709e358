"""Networks between hosts that are not plain: of two interfaces, of IPv6 only, behind a firewall, with odd names."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import (
    LAUNCH,
    PROGRAMS,
    SECRET,
    TRAINING,
    UNILAUNCH,
    MakeCluster,
    bare,
    check_trained,
    with_mpirun,
)
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY

TWO = ["-H", "node0:1,node1:1"]
SUM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ipv6(make_cluster: MakeCluster) -> Cluster:
    """Two hosts that reach each other over IPv6 only."""
    return make_cluster(2, version=6)


@pytest.fixture(scope="module")
def narrow(make_cluster: MakeCluster) -> Iterator[Cluster]:
    """Two hosts between which ssh and 200 ports pass, and whose kernels choose these: docs/hosts.md."""
    hosts = make_cluster(2)
    for host in range(2):
        hosts.take_ports(host, "60000 60199")
    with hosts.firewall((0, 1), ports="60000-60199"):
        yield hosts


@with_mpirun(("mpirun", "second"), [("4.1", "before"), ("5.0", "after"), ("4.1", "twin"), ("5.0", "twin")])
def test_one_of_two_interfaces_leads_nowhere(
    make_cluster: MakeCluster, mpirun: Path, second: str, curve: list[float], tmp_path: Path
) -> None:
    """The network that connects the hosts is found: before it, after it, or like docker's bridge, which all have."""
    hosts = make_cluster(2, second_network=second)
    check_trained(hosts.run(0, bare(mpirun, *TWO, "-n", "2"), tmp_path, NUMPY), 2, 2, curve)


@with_mpirun(("mpirun", "how", "refused"), [
    ("4.1", "launch", False), ("4.1", "mpirun", False), ("4.1", "--hostfile", True),
    ("5.0", "-H", True), ("5.0", "mpirun", False), ("5.0", "--hostfile", False),
])  # fmt: skip
def test_ipv6_only(
    ipv6: Cluster, mpirun: Path, how: str, refused: object, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """As over IPv4, by names and by addresses: Open MPI 5 reads these in a hostfile; elsewhere they are refused."""
    launch = [*LAUNCH, "--mpirun", mpirun, *TRAINING]
    lines = {
        "launch": [*launch, *TWO], "--hostfile": [*launch, "--hostfile", ipv6.hostfile([1, 1], tmp_path)],
        "mpirun": bare(mpirun, *TWO, "-n", "2"),
        "-H": [*launch, "-H", ",".join(f"[{address}]:1" for address in ipv6.addresses)],
    }  # fmt: skip
    job = ipv6.run(0, lines[how], tmp_path, NUMPY)
    if refused:
        assert re.search(rf"{ipv6.addresses[0]}: Open MPI .* takes no IPv6 address", job.refusal())
    else:
        check_trained(job, 2, 2, curve, "Open MPI")


@pytest.mark.parametrize("launcher", ["torchrun", "Slurm"])
def test_ranks_that_meet_over_sockets(ipv6: Cluster, launcher: str, curve: list[float], tmp_path: Path) -> None:
    """Through a file in the home folder, from which they take rank 0's IPv6 address."""
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node0"]
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[0-1]"}
    jobs = []
    for host in range(2):
        start, environ = [sys.executable, "-m", "torch.distributed.run", *common, "--node-rank", str(host)], {}
        if launcher == "Slurm":  # what srun sets: its daemons here are one machine's
            start, environ = [sys.executable], {**step, "SLURM_PROCID": str(host)}
        environ |= NUMPY | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        jobs.append(ipv6.start(host, [*start, *UNILAUNCH[1:], "run", *TRAINING], tmp_path, environ))
    ended = [job.finish() for job in jobs]
    assert all(job.returncode == 0 for job in ended), [job.console for job in ended]
    check_trained(ended[0], 2, 2, curve, launcher)


@with_mpirun(("mpirun", "options", "master", "interface"), [
    ("4.1", {"version": 6, "second_network": "before"}, "", "eth1"),
    ("5.0", {"version": 6, "second_network": "after"}, "", "eth0"),
    ("5.0", {"version": 6, "second_network": "twin"}, "", "eth0"),
    ("5.0", {"named_loopback": True}, "node0", "eth0"),
], ids=["before", "after", "twin", "own name"])  # fmt: skip
def test_where_a_script_meets(
    make_cluster: MakeCluster, mpirun: Path, options: dict[str, object], master: str, interface: str, tmp_path: Path
) -> None:
    """Where another interface has IPv4 and leads nowhere; with MASTER_ADDR=$(hostname), which is 127.0.1.1 (Debian)."""
    hosts = make_cluster(2, **options)
    shutil.copy(PROGRAMS / "meet.py", tmp_path)
    named = ["--master-addr", master] if master else []
    job = hosts.run(0, [*LAUNCH, "--mpirun", mpirun, *TWO, *named, "meet.py"], tmp_path).check()
    said = [job.said(rank).replace("/", " ").split() for rank in range(2)]  # the last two: the address, the interface
    met = [hosts.addresses[0], master or hosts.addresses[0]]
    assert [[*words[:2], *words[-2:]] for words in said] == [[str(rank), "2", met[rank], interface] for rank in (0, 1)]


def test_a_range_of_ports_is_enough(narrow: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """For mpirun's daemons, our own connections, gloo, the store of torch (of one Open MPI), and Open MPI."""
    (tmp_path / "sum.py").write_text(SUM)
    line = [*LAUNCH, "--mpirun", mpirun, *TWO, "--timeout", "60"]
    if not str(mpirun).startswith("/usr"):
        assert narrow.run(0, [*line, "--output-dir", "sum", "sum.py"], tmp_path).check().stdout == "sum 2\n"
    assert narrow.run(0, [*line, *TRAINING], tmp_path, NUMPY).check().result["world_size"] == 2


def test_a_range_of_ports_is_enough_for_a_start_by_hand(narrow: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node0", "--master-port", "60199"]
    line = [*UNILAUNCH, "launch", *options, "--timeout", "60", "--node-rank"]
    jobs = [narrow.start(node, [*line, str(node), "sum.py"], tmp_path, SECRET) for node in range(2)]
    ended = [job.finish().check() for job in jobs]
    assert ended[0].stdout == "sum 2\n"
