"""The training on several hosts: found, counted and trained alike, whatever the launcher and the network between them.

Slurm is there in its variables only: its daemons here are one machine's (tests/jobs/test_slurm.py).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import LAUNCH, PROGRAMS, SECRET, TRAINING, UNILAUNCH, MakeCluster, bare, by_mpirun, check_trained
from cluster.hosts import Cluster, Line
from jobs.mpirun import NUMPY, Finished

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
TWO = ["-H", "node0:1,node1:1"]


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


@by_mpirun(("mpirun", "backend", "slots"), [("4.1", "mindspore", [1, 1]), ("5.0", "torch", [1, 2, 1])])
def test_the_hosts_of_a_hostfile(
    cluster: Cluster, mpirun: Path, backend: str, slots: list[int], curve: list[float], tmp_path: Path
) -> None:
    """Unequal ones too, on both frameworks; nothing runs on afterwards."""
    line = bare(mpirun, "--hostfile", cluster.hostfile(slots, tmp_path), "-n", str(sum(slots)))
    check_trained(cluster.run(0, [*line, "--backend", backend], tmp_path), sum(slots), len(slots), curve)
    assert cluster.left("unilaunch") == []


def test_hosts_named_from_a_head_node(cluster: Cluster, mpirun: Path, curve: list[float], tmp_path: Path) -> None:
    """On the command line; mpirun runs on a host that has no rank."""
    line = bare(mpirun, "-H", "node0:2,node1:1", "-n", "3")
    check_trained(cluster.run(2, line, tmp_path, NUMPY), 3, 2, curve)


def test_no_shared_folder(make_cluster: MakeCluster, openmpi5: Path, curve: list[float], tmp_path: Path) -> None:
    """Each rank logs on its own host, and each host makes the partition for itself; the hosts share no folder."""
    hosts = make_cluster(2, private=[tmp_path])
    hosts.run(0, bare(openmpi5, "-H", "node0,node1", "-n", "2"), tmp_path, NUMPY).check()
    own = [hosts.private(host, tmp_path) for host in range(2)]
    assert [sorted(path.name for path in (folder / "log_output").iterdir()) for folder in own] == [
        [".unilaunch", "checkpoints", "rank.0", "result.json", "spec.json"], [".unilaunch", "rank.1"]
    ]  # fmt: skip
    assert all((folder / "data" / "partitions").is_dir() for folder in own)
    np.testing.assert_allclose(Finished(0, "", "", 0.0, own[0]).result["loss"], curve, rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["mpiexec", "launch"])
@pytest.mark.parametrize(("name", "title"), [("mpich", "MPICH"), ("intel", "Intel MPI")])
def test_hydra(name: str, title: str, how: str, cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Through MPICH's and Intel MPI's own MPI; from `launch` in its own words, with unequal slots as given."""
    mpiexec = ROOT / ".mpi" / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    line = [*UNILAUNCH, "launch", "-H", "node1:1,node0:2", "--mpirun", str(mpiexec)]
    if how == "mpiexec":
        (tmp_path / "hosts").write_text("node0:2\nnode1:1\n")
        hosts = ["-hosts", "node0:2,node1:1"] if name == "mpich" else ["-machinefile", str(tmp_path / "hosts")]
        line = [str(mpiexec), *hosts, "-n", "3", *UNILAUNCH, "run"]
    check_trained(cluster.run(0, [*line, *TRAINING], tmp_path, NUMPY), 3, 2, curve, title)


@pytest.mark.parametrize(("launcher", "version"), [
    ("torchrun", 4), ("torchrun", 6), ("Slurm", 6), pytest.param("msrun", 4, marks=pytest.mark.mindspore)
])  # fmt: skip
def test_a_launcher_that_is_started_on_each_host(
    launcher: str, version: int, cluster: Cluster, ipv6: Cluster, curve: list[float], tmp_path: Path
) -> None:
    """By hand, as torchrun and msrun are; the ranks meet through a file in the home folder, and speak over sockets."""
    hosts = ipv6 if version == 6 else cluster
    main = str(ROOT / "unilaunch" / "__main__.py")
    environ = NUMPY | {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[0-1]"}
    jobs = []
    for host in range(2):
        where = ["--node_rank", str(host), "--master_addr", "node0" if version == 6 else hosts.addresses[0]]
        msrun = ["--worker_num", "4", "--local_worker_num", "2", "--join", "True", "--log_dir", f"msrun.{host}"]
        starts: dict[str, Line] = {
            "torchrun": [BIN / "torchrun", "--nnodes", "2", "--nproc-per-node", "2", *where, *UNILAUNCH[1:]],
            "Slurm": [*UNILAUNCH], "msrun": [BIN / "msrun", *msrun, *where, main],
        }  # fmt: skip
        own = {**step, "SLURM_PROCID": str(host)} if launcher == "Slurm" else {}
        jobs.append(hosts.start(host, [*starts[launcher], "run", *TRAINING], tmp_path, environ | own))
    ended = [job.finish() for job in jobs]
    check_trained(ended[0], 2 if launcher == "Slurm" else 4, 2, curve, launcher)


@by_mpirun(("mpirun", "second"), [("4.1", "before"), ("5.0", "after"), ("4.1", "twin"), ("5.0", "twin")])
def test_one_of_two_interfaces_leads_nowhere(
    make_cluster: MakeCluster, mpirun: Path, second: str, curve: list[float], tmp_path: Path
) -> None:
    """The network that connects the hosts is found: before it, after it, or like docker's bridge, which all have."""
    hosts = make_cluster(2, second_network=second)
    check_trained(hosts.run(0, bare(mpirun, *TWO, "-n", "2"), tmp_path, NUMPY), 2, 2, curve)


@by_mpirun(("mpirun", "how", "refused"), [
    ("4.1", "launch", False), ("4.1", "mpirun", False), ("4.1", "--hostfile", True),
    ("5.0", "-H", True), ("5.0", "mpirun", False), ("5.0", "--hostfile", False),
])  # fmt: skip
def test_ipv6_only(
    ipv6: Cluster, mpirun: Path, how: str, refused: object, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """As over IPv4, by names and by addresses: Open MPI 5 reads these in a hostfile; elsewhere they are refused."""
    launch = [*LAUNCH, "--mpirun", mpirun, *TRAINING]
    lines: dict[str, Line] = {
        "launch": [*launch, *TWO], "--hostfile": [*launch, "--hostfile", ipv6.hostfile([1, 1], tmp_path)],
        "mpirun": bare(mpirun, *TWO, "-n", "2"),
        "-H": [*launch, "-H", ",".join(f"[{address}]:1" for address in ipv6.addresses)],
    }  # fmt: skip
    job = ipv6.run(0, lines[how], tmp_path, NUMPY)
    if refused:
        assert re.search(rf"{ipv6.addresses[0]}: Open MPI .* takes no IPv6 address", job.refusal())
    else:
        check_trained(job, 2, 2, curve, "Open MPI")


@by_mpirun(("mpirun", "options", "master", "interface"), [
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
    named = ["--master-addr", master] if master else []
    job = hosts.run(0, [*LAUNCH, "--mpirun", mpirun, *TWO, *named, PROGRAMS / "meet.py"], tmp_path).check()
    said = [job.said(rank).replace("/", " ").split() for rank in range(2)]  # the last two: the address, the interface
    met = [hosts.addresses[0], master or hosts.addresses[0]]
    assert [[*words[:2], *words[-2:]] for words in said] == [[str(rank), "2", met[rank], interface] for rank in (0, 1)]


def test_a_range_of_ports_is_enough(narrow: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """For mpirun's daemons, our own connections, gloo, the store of torch (of one Open MPI), and Open MPI."""
    line = [*LAUNCH, "--mpirun", mpirun, *TWO, "--timeout", "60"]
    if not str(mpirun).startswith("/usr"):
        assert (
            narrow.run(0, [*line, "--output-dir", "met", PROGRAMS / "meet.py"], tmp_path)
            .check()
            .stdout.startswith("0/2 ")
        )
    assert narrow.run(0, [*line, *TRAINING], tmp_path, NUMPY).check().result["world_size"] == 2


def test_a_range_of_ports_is_enough_for_a_start_by_hand(narrow: Cluster, tmp_path: Path) -> None:
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node0", "--master-port", "60199"]
    line = [*UNILAUNCH, "launch", *options, "--timeout", "60", "--node-rank"]
    jobs = [narrow.start(node, [*line, str(node), PROGRAMS / "meet.py"], tmp_path, SECRET) for node in range(2)]
    ended = [job.finish().check() for job in jobs]
    assert ended[0].stdout.startswith("0/2 ")
