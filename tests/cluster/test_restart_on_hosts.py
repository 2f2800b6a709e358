"""A job that loses a host, and goes on without it."""

import sys
from pathlib import Path

import numpy as np

from cluster.conftest import MakeCluster
from jobs.mpirun import NUMPY, NUMPY_BACKEND, unilaunch, wait_until

INJECT = Path(__file__).parents[1] / "faults" / "inject"
OPTIONS = ["--data-dir", "data", "--precision", "float64", "--epochs", "12", "--backend", "numpy"]


def test_a_job_goes_on_without_the_host_that_is_lost(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """With fewer parts, from the newest checkpoint: the curve is that of a training without a fault."""
    whole = unilaunch(["run", *OPTIONS], tmp_path, NUMPY).check().result["loss"]
    hosts = make_cluster(3)
    hostfile = hosts.hostfile([1, 1, 1], tmp_path)
    options = ["--mpirun", str(mpirun), "--hostfile", str(hostfile), "--max-restarts", "1", "--elastic", "-x", "FAULT"]
    options += ["--host-timeout", "4"]  # the others wait for it in MPI, which takes all their processor time
    line = [sys.executable, "-m", "unilaunch", "launch", *options, *OPTIONS, "--checkpoint-every", "3"]
    environ = {
        "FAULT": f"power_off epoch 2 {tmp_path}", "PYTHONPATH": f"{INJECT}:{NUMPY_BACKEND}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    running = hosts.start(0, line, tmp_path, environ)
    wait_until((tmp_path / "now").exists)
    hosts.power_off(2)
    job = running.finish(200).check()
    assert "rank 2 on node2 (cpu) failed" in job.console
    assert "unilaunch: restart 1 of 1, with 2 ranks" in job.console
    assert "resumed after epoch 3" in job.console
    assert job.result["world_size"] == 2
    assert np.abs(np.array(job.result["loss"]) - whole).max() < 1e-10
