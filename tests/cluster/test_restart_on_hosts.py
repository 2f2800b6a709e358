"""A job that loses a host, and goes on without it."""

import sys
import time
from ast import literal_eval
from pathlib import Path

import numpy as np

from cluster.conftest import MakeCluster
from jobs.mpirun import NUMPY, NUMPY_BACKEND, alone
from unilaunch.launchers.openmpi import has_fabric

INJECT = Path(__file__).parents[1] / "faults" / "inject"
OPTIONS = ["--data-dir", "data", "--precision", "float64", "--epochs", "12", "--backend", "numpy"]


def test_a_job_goes_on_without_the_host_that_is_lost(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """With fewer parts, from the newest checkpoint: the curve is that of a training without a fault."""
    whole = alone(["-m", "unilaunch", "run", *OPTIONS], tmp_path, NUMPY).check().result["loss"]
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
    deadline = time.monotonic() + 100
    while not (tmp_path / "now").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    hosts.power_off(2)
    job = running.finish(200).check()
    assert "rank 2 on node2 (cpu) failed" in job.console
    assert "unilaunch: restart 1 of 1, with 2 ranks" in job.console
    assert "resumed after epoch 3" in job.console
    assert job.result["world_size"] == 2
    assert np.abs(np.array(job.result["loss"]) - whole).max() < 1e-10


def test_hosts_without_a_shared_folder_start_again(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """Each host's folder is claimed anew."""
    (own := tmp_path / "own").mkdir()
    hosts = make_cluster(2, private=[own])
    for host in (0, 1):
        (hosts.private(host, own) / "again.py").write_text(
            "import os\nfrom pathlib import Path\ncount = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
            "Path(f'seen.{count}').touch()\n"
            "raise SystemExit(3 * (count + os.environ['RANK'] == '01'))\n"
        )
    options = ["--mpirun", str(mpirun), "--hostfile", str(hosts.hostfile([1, 1], tmp_path)), "--max-restarts", "1"]
    line = [sys.executable, "-m", "unilaunch", "launch", "--allow-run-as-root", *options, "again.py"]
    job = hosts.start(0, line, own, {}).finish(60).check()
    assert "unilaunch: restart 1 of 1, with 2 ranks" in job.console
    assert all((hosts.private(host, own) / f"seen.{count}").exists() for host in (0, 1) for count in (0, 1))


def test_every_host_is_told_how_often_the_job_was_started(
    make_cluster: MakeCluster, mpirun: Path, tmp_path: Path
) -> None:  # fmt: skip
    """The count of this launch, whatever the one says that this launch was itself started under.

    The rank of the second attempt finds the same MPI and the same transport as that of the first.
    """
    (tmp_path / "again.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "count, allowed = os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['TORCHELASTIC_MAX_RESTARTS']\n"
        "own = {name: os.environ.get(name) for name in ('MPI4PY_LIBMPI', 'OMPI_MCA_btl')}\n"
        "said = Path(f'seen.{count}.{allowed}.' + os.environ['RANK'])\n"
        "said.write_text(repr(own))\nraise SystemExit(3 * (count == '0'))\n"
    )
    hosts = make_cluster(2)
    options = ["--mpirun", str(mpirun), "--hostfile", str(hosts.hostfile([1, 1], tmp_path)), "--max-restarts", "1"]
    line = [sys.executable, "-m", "unilaunch", "launch", "--allow-run-as-root", *options, "again.py"]
    outer = {"TORCHELASTIC_RESTART_COUNT": "7", "TORCHELASTIC_MAX_RESTARTS": "9"}
    hosts.start(0, line, tmp_path, outer).finish(60).check()
    seen = sorted(path.name for path in tmp_path.glob("seen.*"))
    assert seen[-2:] == ["seen.1.1.0", "seen.1.1.1"]
    assert all(name.startswith(("seen.0.1.", "seen.1.1.")) for name in seen)
    first, second = (literal_eval((tmp_path / f"seen.{count}.1.{seen[0][-1]}").read_text()) for count in (0, 1))
    assert first == second
    assert Path(second["MPI4PY_LIBMPI"]).parent.is_relative_to(mpirun.parents[1])
    assert second["OMPI_MCA_btl"] == (None if str(mpirun).startswith("/usr") or has_fabric() else "^ofi")
