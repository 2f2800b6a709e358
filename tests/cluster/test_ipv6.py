"""Hosts with IPv6 addresses only between them, and a name that means another address on its own host."""

import shutil
import sys
from pathlib import Path

import pytest

from cluster.conftest import EPOCHS, LAUNCH, PROGRAMS, SHARING, MakeCluster, check_trained
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY

RUN = ["-m", "unilaunch", "run", "--epochs", str(EPOCHS), "--data-dir", "data", "--backend", "numpy"]


@pytest.fixture(scope="session")
def hosts(make_cluster: MakeCluster) -> Cluster:
    """Two hosts that reach each other over IPv6 only."""
    return make_cluster(2, version=6)


@pytest.mark.parametrize(
    ("mpirun", "how"), [("4.1", "launch"), ("4.1", "mpirun"), ("5.0", "mpirun")], indirect=["mpirun"]
)
def test_a_gcn(hosts: Cluster, mpirun: Path, how: str, curve: list[float], tmp_path: Path) -> None:
    """As over IPv4, from `launch` (with 5.0: by addresses, below) and under a bare mpirun."""
    line = [*LAUNCH, "--mpirun", str(mpirun), "-H", "node0:1,node1:1", *RUN[3:]]
    if how == "mpirun":
        options = [*SHARING, "-x", "PYTHONPATH", "-H", "node0:1,node1:1", "-n", "2"]
        line = [str(mpirun), *options, sys.executable, *RUN]
    check_trained(hosts.run(0, line, tmp_path, NUMPY), 2, 2, curve, "Open MPI")


@pytest.mark.parametrize("how", ["-H", "--hostfile"])
def test_hosts_that_are_given_as_addresses(
    hosts: Cluster, mpirun: Path, how: str, curve: list[float], tmp_path: Path
) -> None:
    """Open MPI 5 reads them in a hostfile. What Open MPI cannot read is refused: in -H, and by Open MPI 4 anywhere."""
    file = hosts.hostfile([1, 1], tmp_path)
    where = {"-H": ",".join(f"[{address}]:1" for address in hosts.addresses), "--hostfile": str(file)}[how]
    job = hosts.run(0, [*LAUNCH, "--mpirun", str(mpirun), how, where, *RUN[3:]], tmp_path, NUMPY)
    if how == "--hostfile" and not str(mpirun).startswith("/usr"):
        check_trained(job, 2, 2, curve, "Open MPI")
    else:
        assert f"{hosts.addresses[0]}: Open MPI" in (refusal := job.refusal())
        assert "takes no IPv6 address" in refusal
        assert refusal.endswith("give the host a name (/etc/hosts)")


def _meet(hosts: Cluster, mpirun: Path, folder: Path, options: list[str]) -> list[str]:
    """Return what each rank says: rank and size, and the address and the interface at which rank 0 is met."""
    shutil.copy(PROGRAMS / "meet.py", folder)
    job = hosts.run(0, [*LAUNCH, "--mpirun", str(mpirun), *options, "meet.py"], folder).check()
    said = [job.said(rank).replace("/", " ").split() for rank in range(len(list(job.output.glob("rank.*"))))]
    return [" ".join([*words[:2], *words[-2:]]) for words in said]


@pytest.mark.parametrize(
    ("mpirun", "second"), [("4.1", "before"), ("5.0", "after"), ("5.0", "twin")], indirect=["mpirun"]
)
def test_a_script_for_torchrun_beside_ipv4(
    make_cluster: MakeCluster, mpirun: Path, second: str, tmp_path: Path
) -> None:  # fmt: skip
    """It finds the IPv6 address and the interface that has it, where another one has IPv4 and leads nowhere."""
    own = make_cluster(2, version=6, second_network=second)
    interface = "eth1" if second == "before" else "eth0"
    said = _meet(own, mpirun, tmp_path, ["-H", "node0:1,node1:1"])
    assert said == [f"{rank} 2 {own.addresses[0]} {interface}" for rank in range(2)]


@pytest.mark.parametrize("launcher", ["torchrun", "Slurm"])
def test_ranks_that_meet_over_sockets(hosts: Cluster, launcher: str, curve: list[float], tmp_path: Path) -> None:
    """Through a file in the home folder, from which they take rank 0's IPv6 address."""
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node0"]
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[0-1]"}
    jobs = []
    for host in range(2):
        start, environ = [sys.executable, "-m", "torch.distributed.run", *common, "--node-rank", str(host)], {}
        if launcher == "Slurm":  # what srun sets: its daemons here are one machine's
            start, environ = [sys.executable], {**step, "SLURM_PROCID": str(host)}
        environ |= NUMPY | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        jobs.append(hosts.start(host, [*start, *RUN], tmp_path, environ))
    ended = [job.finish() for job in jobs]
    assert all(job.returncode == 0 for job in ended), [job.console for job in ended]
    check_trained(ended[0], 2, 2, curve, launcher)


@pytest.mark.parametrize("mpirun", ["5.0"], indirect=True)
def test_a_name_that_is_a_loopback_address_on_its_own_host(
    make_cluster: MakeCluster, mpirun: Path, tmp_path: Path
) -> None:  # fmt: skip
    """MASTER_ADDR=$(hostname), as scripts have it, where the host's own name means 127.0.1.1 (Debian)."""
    own = make_cluster(2, named_loopback=True)
    said = _meet(own, mpirun, tmp_path, ["-H", "node0:1,node1:1", "--master-addr", "node0"])
    assert said == [f"0 2 {own.addresses[0]} eth0", "1 2 node0 eth0"]
