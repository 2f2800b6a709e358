"""Other launchers over three hosts, each on a framework: the loss curve of one process.

Slurm is not among them: its daemons here are one machine's (tests/jobs/test_slurm.py).
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.hosts import Cluster
from jobs.mpirun import NUMPY

BIN = Path(sys.executable).parent
MPI = Path(__file__).parents[2] / ".mpi"
MAIN = Path(__file__).parents[2] / "unilaunch" / "__main__.py"
RUN = ["run", "--epochs", "20", "--data-dir", "data"]
DEADLINE = 90.0


@pytest.mark.parametrize(
    ("name", "launcher", "backend"), [("mpich", "MPICH", "torch"), ("intel", "Intel MPI", "mindspore")]
)
def test_hydra_over_unequal_hosts(
    name: str, launcher: str, backend: str, cluster: Cluster, curve: list[float], tmp_path: Path
) -> None:
    """Through MPICH's and Intel MPI's own MPI."""
    mpiexec = MPI / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    hosts = ["-hosts", "node0:2,node1:1,node2:1"] if name == "mpich" else ["-machinefile", str(tmp_path / "hosts")]
    (tmp_path / "hosts").write_text("node0:2\nnode1:1\nnode2:1\n")
    line = [str(mpiexec), *hosts, "-n", "4", sys.executable, "-m", "unilaunch", *RUN, "--backend", backend]
    result = cluster.run(0, line, tmp_path, deadline=DEADLINE).check().result
    assert (result["world_size"], result["num_hosts"], result["launcher"]) == (4, 3, launcher)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


def test_torchrun_on_each_host(cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Started by hand on every host, as torchrun is; the ranks speak over sockets."""
    common = [str(BIN / "torchrun"), "--nnodes", "3", "--nproc-per-node", "1", "--master-addr", cluster.addresses[0]]
    jobs = [
        cluster.start(
            host, [*common, "--node-rank", str(host), "-m", "unilaunch", *RUN, "--backend", "torch"], tmp_path
        )
        for host in range(3)
    ]
    ended = [job.finish(DEADLINE) for job in jobs]
    result = ended[0].check().result
    assert (result["world_size"], result["num_hosts"], result["launcher"]) == (3, 3, "torchrun")
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


def test_msrun_on_each_host(cluster: Cluster, curve: list[float], tmp_path: Path) -> None:
    """Started by hand on every host, as msrun is."""
    common = [str(BIN / "msrun"), "--worker_num", "3", "--local_worker_num", "1", "--join", "True",
              "--master_addr", cluster.addresses[0]]  # fmt: skip
    jobs = [
        cluster.start(
            host,
            [
                *common,
                "--node_rank",
                str(host),
                "--log_dir",
                f"msrun.{host}",
                str(MAIN),
                *RUN,
                "--backend",
                "mindspore",
            ],
            tmp_path,
            {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin"},  # msrun starts what PATH calls python
        )
        for host in range(3)
    ]
    ended = [job.finish(DEADLINE) for job in jobs]
    result = ended[0].check().result
    assert (result["world_size"], result["num_hosts"], result["launcher"]) == (3, 3, "msrun")
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
    line = [sys.executable, "-m", "unilaunch", "launch", *hosts, "--console", "all", *RUN[1:], "--backend", "numpy"]
    job = cluster.run(0, line, tmp_path, NUMPY, deadline=DEADLINE).check()
    assert (job.result["world_size"], job.result["num_hosts"]) == (4, 3)
    np.testing.assert_allclose(job.result["loss"], curve, rtol=0, atol=1e-5)
    shown = cluster.run(0, [*line, "--dry-run", "--json"], tmp_path, NUMPY, deadline=DEADLINE).check()
    planned = [row["host"] for row in json.loads(shown.stdout)["ranks"]]
    logs = [(job.output / f"rank.{rank}" / "events.jsonl").read_text() for rank in range(4)]
    assert planned == [json.loads(log.splitlines()[2])["host"] for log in logs]
