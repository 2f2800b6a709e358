"""A network that stumbles, and a host without power: what becomes of a job under plain mpirun and under unilaunch.

    python benchmarks/network.py [--seconds 120]

Three ranks on three hosts made of namespaces (root only); 5 % of the packets between them are lost for so many seconds.
Bounds: no job ends that plain mpirun keeps; `launch` ends a job within 19 seconds after a host has lost its power.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from cluster.hosts import Cluster, Running, lacking
from mpirun import verdict

MPIS = {"Open MPI 4": Path("/usr/bin/mpirun"), "Open MPI 5": Path(sys.executable).parent / "mpirun"}
WAYS = ("plain mpirun", "launch", "mpirun + run")
#: Seconds that a lost host has until a job counts as one that does not notice it.
PATIENCE = 60.0
#: The option's default, and what ends a job.
NOTICED = 15.0 + 4.0
#: Seconds after the network is well again in which a job may still end of what it was.
CALM = 20.0
PROGRAM = """
import sys, time
from pathlib import Path
from mpi4py import MPI
comm, busy = MPI.COMM_WORLD, sys.argv[1] == "busy"
Path(f"up.{comm.rank}").touch()
while True:
    time.sleep(0.1)
    ended = Path("end").exists()
    if busy:
        print("a step", flush=True)
        ended = comm.bcast(ended)
    if ended:
        break
comm.Barrier()
"""


@dataclass(frozen=True)
class Trial:
    """What happens to the network for how many seconds, and whether the ranks are "busy" or "idle" meanwhile.

    With *words* the moment counts at which a job says them, as well as its end.
    """

    name: str
    load: str
    seconds: float
    begin: Callable[[Cluster], None]
    end: Callable[[Cluster], None] | None = None
    words: str = ""


def main() -> int:
    """Try everything, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    seconds = parser.parse_args().seconds
    if missing := lacking():
        raise SystemExit(f"no hosts can be made here: this machine lacks {missing}")
    trials = [
        Trial("2 s of silence", "busy", 2, _cut, _heal),
        Trial("10 s of silence", "busy", 10, _cut, _heal),
        Trial(f"5 % loss, {seconds:.0f} s, idle", "idle", seconds, lambda cluster: cluster.lose(5), _lose_no_more),
        Trial(f"5 % loss, {seconds:.0f} s, busy", "busy", seconds, lambda cluster: cluster.lose(5), _lose_no_more),
        Trial("power off, said", "busy", PATIENCE, _power_off, words="does not answer"),
        Trial("power off, ended", "busy", PATIENCE, _power_off),
    ]
    print(f"{'':24}" + "".join(f"{way:>18}" for way in WAYS))
    lost, late = 0, 0.0
    for name, mpirun in MPIS.items():
        print(name)
        with ThreadPoolExecutor(len(trials)) as pool:
            rows = list(pool.map(lambda trial, mpirun=mpirun: _try(trial, mpirun), trials))
        for trial, row in zip(trials, rows, strict=True):
            print(f"{trial.name:>24}" + "".join(f"{_show(trial, ended):>18}" for ended in row), flush=True)
            if not (trial.end or trial.words):
                late = max(late, row[1] or PATIENCE)
            elif trial.end and row[0] is None:
                lost += sum(ended is not None for ended in row)
    kept = verdict("jobs ended that plain mpirun kept", lost, 0)
    return 0 if verdict("seconds until launch ended a job without a host", late, NOTICED) and kept else 1


def _show(trial: Trial, ended: float | None) -> str:
    if ended is None:
        return "survived" if trial.end else f"not in {trial.seconds:.0f} s"
    return f"ended, {ended:.1f} s" if trial.end else f"{ended:.1f} s"


def _cut(cluster: Cluster) -> None:
    for host in (1, 2):
        cluster.cut(host)


def _heal(cluster: Cluster) -> None:
    for host in (1, 2):
        cluster.heal(host)


def _power_off(cluster: Cluster) -> None:
    cluster.power_off(2)


def _lose_no_more(cluster: Cluster) -> None:
    cluster.lose(0)


def _try(trial: Trial, mpirun: Path) -> list[float | None]:
    """Return by way the seconds after which the job ended; None if it went on to its own end, or never noticed."""
    with tempfile.TemporaryDirectory() as name, Cluster(3, _make(Path(name, "cluster"))) as cluster:
        jobs = [_start(cluster, way, mpirun, _make(Path(name, way.replace(" ", ""))), trial.load) for way in WAYS]
        for job in jobs:
            _await_ranks(job)
        begin = time.monotonic()
        trial.begin(cluster)
        ended = _watch(jobs, begin, trial.seconds, trial.words)
        if trial.end:
            trial.end(cluster)
            late = _watch(jobs, begin, trial.seconds + CALM)
            ended = [early or after for early, after in zip(ended, late, strict=True)]
        for job, seconds in zip(jobs, ended, strict=True):
            (job.folder / "end").touch()
            if seconds is None and trial.end:
                job.finish(time.monotonic() - job.begin + PATIENCE).check()
        cluster.sweep()
        return ended


def _make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _start(cluster: Cluster, way: str, mpirun: Path, folder: Path, load: str) -> Running:
    (folder / "program.py").write_text(PROGRAM)
    where: list[str | Path] = [
        "--hostfile",
        cluster.hostfile([1, 1, 1], folder),
        "--bind-to",
        "none",
        "--allow-run-as-root",
    ]
    run = [sys.executable, "-m", "unilaunch"]
    lines: dict[str, list[str | Path]] = {
        "plain mpirun": [mpirun, *where, sys.executable, "program.py", load],
        "launch": [*run, "launch", "--mpirun", mpirun, *where, "program.py", "--", load],
        "mpirun + run": [mpirun, *where, *run, "run", "program.py", "--", load],
    }
    return cluster.start(0, lines[way], folder)


def _await_ranks(job: Running) -> None:
    deadline = time.monotonic() + 120
    while len(list(job.folder.glob("up.*"))) < 3:
        assert time.monotonic() < deadline, job.process.args
        time.sleep(0.1)


def _watch(jobs: list[Running], begin: float, seconds: float, words: str = "") -> list[float | None]:
    """Return when each job ended or said *words*, in seconds from *begin*, within so many seconds."""
    ended: list[float | None] = [None] * len(jobs)
    while None in ended and time.monotonic() < begin + seconds:
        for index, job in enumerate(jobs):
            if ended[index] is None and (job.process.poll() is not None or (words and words in _console(job))):
                ended[index] = time.monotonic() - begin
        time.sleep(0.05)
    return ended


def _console(job: Running) -> str:
    return "".join((job.written / name).read_text() for name in ("stdout", "stderr"))


if __name__ == "__main__":
    sys.exit(main())
