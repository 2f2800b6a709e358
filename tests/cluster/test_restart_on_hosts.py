"""A job that loses a host, and goes on without it."""

import sys
from ast import literal_eval
from pathlib import Path

import numpy as np

from cluster.conftest import INJECT, MakeCluster
from jobs.mpirun import NUMPY, NUMPY_BACKEND, unilaunch, wait_until
from unilaunch.launchers.openmpi import has_fabric

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


def test_hosts_without_a_shared_folder_start_again(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """Each host's folder is claimed anew, and each is told the count of this launch, whatever it was started under.

    The rank of the second attempt finds the same MPI and the same transport as that of the first.
    """
    (own := tmp_path / "own").mkdir()
    hosts = make_cluster(2, private=[own])
    for host in (0, 1):
        (hosts.private(host, own) / "again.py").write_text(
            "import os\nfrom pathlib import Path\n"
            "count, allowed = os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['TORCHELASTIC_MAX_RESTARTS']\n"
            "own = {name: os.environ.get(name) for name in ('MPI4PY_LIBMPI', 'OMPI_MCA_btl')}\n"
            "Path(f'seen.{count}.{allowed}').write_text(repr(own))\n"
            "raise SystemExit(3 * (count + os.environ['RANK'] == '01'))\n"
        )
    options = ["--mpirun", str(mpirun), "--hostfile", str(hosts.hostfile([1, 1], tmp_path)), "--max-restarts", "1"]
    line = [sys.executable, "-m", "unilaunch", "launch", "--allow-run-as-root", *options, "again.py"]
    outer = {"TORCHELASTIC_RESTART_COUNT": "7", "TORCHELASTIC_MAX_RESTARTS": "9"}
    job = hosts.start(0, line, own, outer).finish(60).check()
    assert "restart 1 of 1, with 2 ranks" in job.console
    for host in (0, 1):
        folder = hosts.private(host, own)
        assert sorted(path.name for path in folder.glob("seen.*")) == ["seen.0.1", "seen.1.1"]
        first, second = (literal_eval((folder / f"seen.{count}.1").read_text()) for count in (0, 1))
        assert first == second
        assert Path(second["MPI4PY_LIBMPI"]).parent.is_relative_to(mpirun.parents[1])
        assert second["OMPI_MCA_btl"] == (None if str(mpirun).startswith("/usr") or has_fabric() else "^ofi")
