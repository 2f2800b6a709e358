"""A job that loses a host goes on without it, a network that stumbles ends none, and a stop reaches every host."""

import signal
import time
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest

from cluster.conftest import INJECT, LAUNCH, SHARING, UNILAUNCH, MakeCluster
from cluster.hosts import Cluster, Running
from jobs.conftest import LAUNCHERS, find_launcher
from jobs.mpirun import NUMPY, NUMPY_BACKEND, unilaunch, wait_until
from jobs.test_stop import SAVE
from unilaunch.launchers.openmpi import has_fabric

TRAINING = ["--data-dir", "data", "--precision", "float64", "--epochs", "12", "--backend", "numpy"]
#: Ends its rank 1 with 3 in the first attempt, and leaves what the rank has found.
AGAIN = """
import os
from pathlib import Path
count, allowed = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"]
own = {name: os.environ.get(name) for name in ("MPI4PY_LIBMPI", "OMPI_MCA_btl")}
Path(f"seen.{count}.{allowed}").write_text(repr(own))
raise SystemExit(3 * (count + os.environ["RANK"] == "01"))
"""
#: Ranks 0 and 1 speak all the time, over MPI and to the monitor; rank 2 is silent. Who waits leaves the processors.
STEPS = """
import time
from pathlib import Path
from mpi4py import MPI
comm = MPI.COMM_WORLD
pair = comm.Split(comm.rank == 2)
Path(f"up.{comm.rank}").touch()
def wait(request):
    while not request.Test():
        time.sleep(0.02)
end = bytearray(1)
while not end[0]:
    end[0] = Path("end").exists()
    wait(pair.Ibcast(end))
    time.sleep(0.1)
    if comm.rank < 2:
        print("step", flush=True)
wait(comm.Ibarrier())
Path(f"ended.{comm.rank}").touch()
"""


def test_a_job_goes_on_without_the_host_that_is_lost(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """With fewer parts, from the newest checkpoint: the curve is that of a training without a fault."""
    whole = unilaunch(["run", *TRAINING], tmp_path, NUMPY).check().result["loss"]
    hosts = make_cluster(3)
    options = ["--hostfile", hosts.hostfile([1, 1, 1], tmp_path), "--max-restarts", "1", "--elastic", "-x", "FAULT"]
    options += ["--host-timeout", "4", "--checkpoint-every", "3"]  # the others wait for it in MPI
    environ = {"FAULT": f"power_off epoch 2 {tmp_path}", "PYTHONPATH": f"{INJECT}:{NUMPY_BACKEND}"}
    running = hosts.start(0, [*LAUNCH, "--mpirun", mpirun, *options, *TRAINING], tmp_path, environ)
    wait_until((tmp_path / "now").exists)
    hosts.power_off(2)
    job = running.finish(200).check()
    for said in ("rank 2 on node2 (cpu) failed", "unilaunch: restart 1 of 1, with 2 ranks", "resumed after epoch 3"):
        assert said in job.console
    assert job.result["world_size"] == 2
    assert np.abs(np.array(job.result["loss"]) - whole).max() < 1e-10


def test_hosts_without_a_shared_folder_start_again(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """Each host is told the count of this launch; the second attempt finds the same MPI and transport as the first."""
    (own := tmp_path / "own").mkdir()
    hosts = make_cluster(2, private=[own])
    folders = [hosts.private(host, own) for host in range(2)]
    for folder in folders:
        (folder / "again.py").write_text(AGAIN)
    line = [*LAUNCH, "--mpirun", mpirun, "-H", "node0:1,node1:1", "--max-restarts", "1", "again.py"]
    outer = {"TORCHELASTIC_RESTART_COUNT": "7", "TORCHELASTIC_MAX_RESTARTS": "9"}
    job = hosts.start(0, line, own, outer).finish(60).check()
    assert "restart 1 of 1, with 2 ranks" in job.console
    for folder in folders:
        assert sorted(path.name for path in folder.glob("seen.*")) == ["seen.0.1", "seen.1.1"]
        first, second = (literal_eval((folder / f"seen.{count}.1").read_text()) for count in (0, 1))
        assert first == second
        assert Path(second["MPI4PY_LIBMPI"]).parent.is_relative_to(mpirun.parents[1])
        assert second["OMPI_MCA_btl"] == (None if str(mpirun).startswith("/usr") or has_fabric() else "^ofi")


def test_ten_seconds_of_silence_end_no_job(cluster: Cluster, tmp_path: Path) -> None:
    """With 5 % of the packets lost around it, busy ranks and an idle one, in four jobs that share the silence."""
    jobs: list[Running] = []
    hosts = ["--hostfile", cluster.hostfile([1, 1, 1], tmp_path)]
    for version in LAUNCHERS:
        mpirun = find_launcher(version).path
        for line in ([*LAUNCH, "--mpirun", mpirun, *hosts], [mpirun, *SHARING, *hosts, *UNILAUNCH, "run"]):
            (folder := tmp_path / str(len(jobs))).mkdir()
            (folder / "steps.py").write_text(STEPS)
            jobs.append(cluster.start(0, [*line, "steps.py"], folder))
    try:
        wait_until(lambda: len(list(tmp_path.glob("*/up.*"))) == 3 * len(jobs))
        cluster.lose(5)
        time.sleep(1)
        with cluster.without(1), cluster.without(2):
            time.sleep(10)
        time.sleep(2)
    except BaseException:
        cluster.sweep()  # or the next test would take one of these jobs for its own
        raise
    finally:
        cluster.lose(0)
        for job in jobs:
            (job.folder / "end").touch()
    for ended in [job.finish(240) for job in jobs]:  # all, so that none is left to the next test
        assert ended.check().refusals() == []
        assert len(list(ended.folder.glob("ended.*"))) == 3


@pytest.mark.timed
def test_a_stop_reaches_the_ranks_of_every_host(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """They save for longer than mpirun would wait; a host whose rank has ended already does not end the others."""
    (tmp_path / "save.py").write_text(SAVE)
    hosts = ["--hostfile", cluster.hostfile([1, 1, 1], tmp_path)]
    job = cluster.start(0, [*LAUNCH, "--mpirun", mpirun, *hosts, "save.py", "--", "2.5"], tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 3)
    begin = time.monotonic()
    cluster.kill(0, "unilaunch launch", signal.SIGTERM)
    assert job.finish(90).returncode == 143
    assert time.monotonic() - begin < 10
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]
    assert cluster.left("unilaunch") == []
