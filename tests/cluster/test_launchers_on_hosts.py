"""Other launchers over several hosts, with numpy: the loss curve of one process.

The frameworks are trained under each of them in tests/jobs/test_launchers.py. Slurm is not among them: its daemons here
are one machine's (tests/jobs/test_slurm.py).
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import EPOCHS
from cluster.hosts import LOGIN, Cluster
from jobs.mpirun import NUMPY

BIN = Path(sys.executable).parent
MPI = Path(__file__).parents[2] / ".mpi"
MAIN = Path(__file__).parents[2] / "unilaunch" / "__main__.py"
RUN = ["run", "--epochs", str(EPOCHS), "--data-dir", "data", "--backend", "numpy"]


@pytest.mark.parametrize(("name", "launcher"), [("mpich", "MPICH"), ("intel", "Intel MPI")])
def test_hydra_over_unequal_hosts(
    name: str, launcher: str, cluster: Cluster, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """Through MPICH's and Intel MPI's own MPI."""
    mpiexec = MPI / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    hosts = ["-hosts", "node0:2,node1:1"] if name == "mpich" else ["-machinefile", str(tmp_path / "hosts")]
    (tmp_path / "hosts").write_text("node0:2\nnode1:1\n")
    line = [str(mpiexec), *hosts, "-n", "3", sys.executable, "-m", "unilaunch", *RUN]
    result = cluster.run(0, line, tmp_path, NUMPY).check().result
    assert (result["world_size"], result["num_hosts"], result["launcher"]) == (3, 2, launcher)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


def test_torchrun_on_each_host(cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Started by hand on every host, as torchrun is; the ranks speak over sockets."""
    common = [str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", cluster.addresses[0]]
    jobs = [
        cluster.start(host, [*common, "--node-rank", str(host), "-m", "unilaunch", *RUN], tmp_path, NUMPY)
        for host in range(2)
    ]
    ended = [job.finish() for job in jobs]
    result = ended[0].check().result
    assert (result["world_size"], result["num_hosts"], result["launcher"]) == (4, 2, "torchrun")
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


@pytest.mark.mindspore
def test_msrun_on_each_host(cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Started by hand on every host, as msrun is."""
    common = [str(BIN / "msrun"), "--worker_num", "4", "--local_worker_num", "2", "--join", "True",
              "--master_addr", cluster.addresses[0]]  # fmt: skip
    environ = NUMPY | {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin"}  # msrun starts what PATH calls python
    jobs = []
    for host in range(2):
        own = ["--node_rank", str(host), "--log_dir", f"msrun.{host}"]
        jobs.append(cluster.start(host, [*common, *own, str(MAIN), *RUN], tmp_path, environ))
    ended = [job.finish() for job in jobs]
    result = ended[0].check().result
    assert (result["world_size"], result["num_hosts"], result["launcher"]) == (4, 2, "msrun")
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mpich", "intel"])
def test_launch_with_hydra_over_unequal_hosts(
    name: str, cluster: Cluster, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """In its own words: slots as they were given."""
    mpiexec = MPI / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    hosts = ["-H", "node1:1,node0:2,node2:1", "--mpirun", str(mpiexec)]
    line = [sys.executable, "-m", "unilaunch", "launch", *hosts, "--console", "all", *RUN[1:]]
    job = cluster.run(0, line, tmp_path, NUMPY).check()
    assert (job.result["world_size"], job.result["num_hosts"]) == (4, 3)
    np.testing.assert_allclose(job.result["loss"], curve, rtol=0, atol=1e-5)
    shown = cluster.run(0, [*line, "--dry-run", "--json"], tmp_path, NUMPY).check()
    planned = [row["host"] for row in json.loads(shown.stdout)["ranks"]]
    logs = [(job.output / f"rank.{rank}" / "events.jsonl").read_text() for rank in range(4)]
    assert planned == [json.loads(log.splitlines()[2])["host"] for log in logs]


def test_a_virtual_environment_that_other_hosts_do_not_find_is_said(cluster: Cluster, tmp_path: Path) -> None:
    """The other host has no `python` in its PATH: mpirun ends rank 0, and rank 0's agent says what to add.

    Open MPI 5 finds that out before it starts any rank, and its own message is all there is.
    """
    mpirun = Path("/usr/bin/mpirun")
    if not mpirun.exists():
        pytest.skip(f"no {mpirun}")
    (tmp_path / "train.py").touch()
    hosts = cluster.hostfile([1, 1], tmp_path)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    line = [str(mpirun), "--hostfile", str(hosts), "-n", "2", "python", "-m", "unilaunch", "run", "train.py"]
    hints: list[str] = []
    for _ in range(10):  # on a busy machine mpirun can end rank 0 while its Python still starts: then nobody can say it
        job = cluster.run(0, line, tmp_path, {"PATH": f"{BIN}:{LOGIN['PATH']}", **root})
        assert job.returncode
        if hints := [said for said in job.refusals() if "the ranks of other hosts did not come" in said]:
            break
    assert "type mpirun -x PATH ..." in hints[0]
