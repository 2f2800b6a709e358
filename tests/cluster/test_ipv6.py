"""Hosts with IPv6 addresses only between them, and a name that means another address on its own host."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import EPOCHS, MakeCluster
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY, Finished

PROGRAMS = Path(__file__).parents[1] / "jobs" / "programs"
RUN = ["-m", "unilaunch", "run", "--epochs", str(EPOCHS), "--data-dir", "data", "--backend", "numpy"]
SHARING = ["--bind-to", "none", "-x", "OMPI_MCA_mpi_yield_when_idle=1", "--allow-run-as-root"]
LAUNCH = [sys.executable, "-m", "unilaunch", "launch", *SHARING]
#: Shows where torch would meet, as meet.py does, but without torch: it starts in a tenth of the time.
SAY = """
import os
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(rank, size, os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"])
"""


@pytest.fixture(scope="session")
def hosts(make_cluster: MakeCluster) -> Cluster:
    """Two hosts that reach each other over IPv6 only."""
    return make_cluster(2, version=6)


def _check_trained(job: Finished, launcher: str, curve: list[float]) -> None:
    result = job.check().result
    assert (result["world_size"], result["num_hosts"]) == (2, 2)
    assert result["launcher"].startswith(launcher)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["launch", "mpirun"])
def test_a_gcn(hosts: Cluster, mpirun: Path, how: str, curve: list[float], tmp_path: Path) -> None:
    """As over IPv4, from `launch` and under a bare mpirun."""
    line = [*LAUNCH, "--mpirun", str(mpirun), "-H", "node0:1,node1:1", *RUN[3:]]
    if how == "mpirun":
        options = [*SHARING, "-x", "PYTHONPATH", "-H", "node0:1,node1:1", "-n", "2"]
        line = [str(mpirun), *options, sys.executable, *RUN]
    _check_trained(hosts.run(0, line, tmp_path, NUMPY), "Open MPI", curve)


@pytest.mark.parametrize("how", ["-H", "--hostfile"])
def test_hosts_that_are_given_as_addresses(
    hosts: Cluster, mpirun: Path, how: str, curve: list[float], tmp_path: Path
) -> None:
    """Open MPI 5 reads them in a hostfile. What Open MPI cannot read is refused: in -H, and by Open MPI 4 anywhere."""
    file = hosts.hostfile([1, 1], tmp_path)
    where = {"-H": ",".join(f"[{address}]:1" for address in hosts.addresses), "--hostfile": str(file)}[how]
    line = [*LAUNCH, "--mpirun", str(mpirun), how, where, *RUN[3:]]
    job = hosts.run(0, line, tmp_path, NUMPY)
    four = str(mpirun).startswith("/usr")
    if how == "--hostfile" and not four:
        _check_trained(job, "Open MPI", curve)
        return
    assert job.returncode == 2
    (refusal,) = job.refusals()
    assert f"{hosts.addresses[0]}: Open MPI {4 if four else 5} takes no IPv6 address" in refusal
    assert refusal.endswith("give the host a name (/etc/hosts)")
    assert ("--hostfile" in refusal) == (not four)


def _meet(own: Cluster, mpirun: Path, folder: Path, options: list[str], *, by_torch: bool) -> list[str]:
    """Return what each rank says: rank and size, and the address and the interface at which rank 0 is met."""
    if by_torch:
        shutil.copy(PROGRAMS / "meet.py", folder / "script.py")
    else:
        (folder / "script.py").write_text(SAY)
    line = [*LAUNCH, "--mpirun", str(mpirun), *options, "script.py"]
    own.run(0, line, folder).check()
    files = sorted(folder.glob("log_output/rank.*/stdout"))
    said = [file.read_text().replace("/", " ").split() for file in files]
    if by_torch:  # local L elastic True WEIGHT WEIGHT, which all ranks have alike
        weight = f"{5 - 0.1 * (len(said) + 1) / 2:.6f}"
        assert {tuple(words[4:8]) for words in said} == {("elastic", "True", weight, weight)}
    return [" ".join([*words[:2], *words[-2:]]) for words in said]


def test_a_script_for_torchrun(hosts: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """Two ranks of one host and one of another meet at the IPv6 address."""
    said = _meet(hosts, mpirun, tmp_path, ["-H", "node0:2,node1:1"], by_torch=True)
    assert said == [f"{rank} 3 {hosts.addresses[0]} eth0" for rank in range(3)]


@pytest.mark.parametrize("second", ["before", "after", "twin"])
def test_a_script_for_torchrun_beside_ipv4(
    shared_cluster: MakeCluster, mpirun: Path, second: str, tmp_path: Path
) -> None:
    """It finds the IPv6 address and the interface that has it, where another one has IPv4 and leads nowhere.

    Under one of the Open MPIs the ranks meet there; under the other one they only show their variables.
    """
    own = shared_cluster(2, version=6, second_network=second)
    by_torch = str(mpirun).startswith("/usr") == (second == "before")
    said = _meet(own, mpirun, tmp_path, ["-H", "node0:1,node1:1"], by_torch=by_torch)
    interface = "eth1" if second == "before" else "eth0"
    assert said == [f"{rank} 2 {own.addresses[0]} {interface}" for rank in range(2)]


@pytest.mark.parametrize("named", ["names", "addresses"])
def test_doctor(hosts: Cluster, mpirun: Path, named: str, tmp_path: Path) -> None:
    """It reaches every host, and shows the address at which all reach rank 0."""
    where = ",".join(hosts.names if named == "names" else [f"[{address}]" for address in hosts.addresses])
    line = [sys.executable, "-m", "unilaunch", "doctor", "--allow-run-as-root", "--mpirun", str(mpirun)]
    job = hosts.run(0, [*line, "-H", where], tmp_path)
    if named == "addresses" and str(mpirun).startswith("/usr"):
        assert job.returncode == 2
        assert "Open MPI 4 takes no IPv6 address" in job.console
        return
    job.check()
    assert job.stdout.startswith("all 2 hosts are ready: ")
    assert f"rank 0 reached at {hosts.addresses[0]} (eth0)" in job.stdout


def test_a_failure_on_another_host_is_told(hosts: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """The control connection stands too: the launching host knows which rank failed, and where."""
    (tmp_path / "fail.py").write_text("import os, sys\nif os.environ['RANK'] == '1': sys.exit(9)\n")
    line = [*LAUNCH, "--mpirun", str(mpirun), "-H", "node0:1,node1:1", "fail.py"]
    job = hosts.run(0, line, tmp_path)
    assert job.returncode == 9
    assert "rank 1 on node1" in job.stderr


@pytest.mark.parametrize("launcher", ["torchrun", "Slurm"])
def test_ranks_that_meet_over_sockets(hosts: Cluster, launcher: str, curve: list[float], tmp_path: Path) -> None:
    """Through a file in the home folder, from which they take rank 0's IPv6 address."""
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node0"]
    jobs = []
    for host in range(2):
        if launcher == "torchrun":
            start = [sys.executable, "-m", "torch.distributed.run", *common, "--node-rank", str(host)]
            environ = {}
        else:  # what srun sets: its daemons here are one machine's
            start = [sys.executable]
            environ = {"SLURM_PROCID": str(host), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0",
                       "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[0-1]"}  # fmt: skip
        environ |= NUMPY | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        jobs.append(hosts.start(host, [*start, *RUN], tmp_path, environ))
    ended = [job.finish() for job in jobs]
    assert all(job.returncode == 0 for job in ended), [job.console for job in ended]
    _check_trained(ended[0], launcher, curve)


def test_a_name_that_is_a_loopback_address_on_its_own_host(
    shared_cluster: MakeCluster, mpirun: Path, tmp_path: Path
) -> None:  # fmt: skip
    """MASTER_ADDR=$(hostname), as scripts have it, where the host's own name means 127.0.1.1 (Debian).

    Under Open MPI 5 the ranks meet there; under Open MPI 4 they only show their variables.
    """
    own = shared_cluster(2, named_loopback=True)
    options = ["-H", "node0:1,node1:1", "--master-addr", "node0"]
    said = _meet(own, mpirun, tmp_path, options, by_torch=not str(mpirun).startswith("/usr"))
    assert said == [f"0 2 {own.addresses[0]} eth0", "1 2 node0 eth0"]


def test_a_host_without_an_ipv4_loopback(make_cluster: MakeCluster, curve: list[float], tmp_path: Path) -> None:
    """A job on one host meets at ::1 there, and nobody else can call it."""
    own = make_cluster(1, version=6)
    own.run(0, ["ip", "address", "del", "127.0.0.1/8", "dev", "lo"], tmp_path).check()
    own.run(0, ["ip", "link", "set", "eth0", "down"], tmp_path).check()
    jobs = [
        own.start(0, [sys.executable, *RUN], tmp_path, NUMPY | {
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        })
        for rank in range(2)
    ]  # fmt: skip
    ended = [job.finish() for job in jobs]
    assert all(job.returncode == 0 for job in ended), [job.console for job in ended]
    np.testing.assert_allclose(ended[0].result["loss"], curve, rtol=0, atol=1e-5)
