"""The training on several hosts: found, counted and trained alike wherever the ranks are, under every launcher.

Slurm is not among the launchers: its daemons here are one machine's (tests/jobs/test_slurm.py).
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import TRAINING, UNILAUNCH, MakeCluster, bare, check_trained, with_mpirun
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY, Finished

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


@with_mpirun(("mpirun", "backend", "slots"), [("4.1", "mindspore", [1, 1]), ("5.0", "torch", [1, 2, 1])])
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


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("msrun", marks=pytest.mark.mindspore)])
def test_a_launcher_started_on_each_host(launcher: str, cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """By hand, as torchrun and msrun are; the ranks speak over sockets."""
    environ = NUMPY | {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin"}  # msrun starts what PATH calls python
    jobs = []
    for host in range(2):
        common = ["--master_addr", cluster.addresses[0], "--node_rank", str(host)]
        words = ["--nnodes", "2", "--nproc-per-node", "2", *common, "-m", "unilaunch"]
        if launcher == "msrun":
            words = ["--worker_num", "4", "--local_worker_num", "2", "--join", "True", *common]
            words += ["--log_dir", f"msrun.{host}", str(ROOT / "unilaunch" / "__main__.py")]
        jobs.append(cluster.start(host, [BIN / launcher, *words, "run", *TRAINING], tmp_path, environ))
    ended = [job.finish() for job in jobs]
    check_trained(ended[0], 4, 2, curve, launcher)
