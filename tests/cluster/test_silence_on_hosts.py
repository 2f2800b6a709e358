"""A network that stumbles ends no job; and a stop reaches the ranks of every host."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.conftest import SHARING
from cluster.hosts import Cluster
from jobs.mpirun import wait_until
from jobs.test_stop import SAVE

#: Ranks 0 and 1 speak all the time, over MPI and to the monitor; rank 2 is silent. Who waits leaves the processors.
STEPS = """
import sys, time
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


def test_ten_seconds_of_silence_end_no_job(cluster: Cluster, mpiruns: Mapping[str, Path], tmp_path: Path) -> None:
    """With 5 % of the packets lost before and after it, busy ranks and an idle one, under launch and a bare mpirun.

    Four jobs, of both versions of Open MPI, share the silence.
    """
    where: list[str | Path] = [*SHARING, "--hostfile", cluster.hostfile([1, 1, 1], tmp_path)]
    run = [sys.executable, "-m", "unilaunch"]
    lines: dict[str, list[str | Path]] = {}
    for version, mpirun in mpiruns.items():
        lines[f"launch-{version}"] = [*run, "launch", "--mpirun", mpirun, *where, "steps.py"]
        lines[f"mpirun-{version}"] = [mpirun, *where, *run, "run", "steps.py"]
    jobs = {}
    for how, line in lines.items():
        (tmp_path / how).mkdir()
        (tmp_path / how / "steps.py").write_text(STEPS)
        jobs[how] = cluster.start(0, line, tmp_path / how)
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
        for how in jobs:
            (tmp_path / how / "end").touch()
    all_ended = {how: job.finish(240) for how, job in jobs.items()}  # all, so that none is left to the next test
    for how, ended in all_ended.items():
        assert ended.check().refusals() == []
        assert len(list((tmp_path / how).glob("ended.*"))) == 3


@pytest.mark.timed
def test_a_stop_reaches_the_ranks_of_every_host(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """They save for longer than mpirun would wait; a host whose rank has ended already does not end the others."""
    (tmp_path / "save.py").write_text(SAVE)
    options: list[str | Path] = [*SHARING, "--mpirun", mpirun, "--hostfile", cluster.hostfile([1, 1, 1], tmp_path)]
    line: list[str | Path] = [sys.executable, "-m", "unilaunch", "launch", *options, "save.py", "--", "2.5"]
    job = cluster.start(0, line, tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 3)
    launch = cluster.first(0, "unilaunch launch")
    begin = time.monotonic()
    os.kill(launch, signal.SIGTERM)
    assert job.finish(90).returncode == 143
    assert time.monotonic() - begin < 10
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]
    assert cluster.left("unilaunch") == []
