"""From SIGKILL of one of four ranks to the next finished step: under `launch`, and under torchrun beside it.

    python benchmarks/restart.py [--rounds 5] [--hosts]

Each job starts, one of its ranks is killed after a second, and the job is started again: a GCN goes on from its newest
checkpoint to the end of an epoch, a script to the first step of all ranks. Medians. Bounds: 0.7 s for a GCN that was
started directly; under mpirun 1.5 of the time from the command to the end of the first epoch, in each round; for the
script not more than torchrun takes.

With --hosts: two ranks on one host and one on each of two others, which are namespaces of this machine
(tests/cluster/hosts.py; as root); the rank of the second host is killed. Bound 3 s; without torchrun.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mpirun import MPIRUN, UNILAUNCH, environment, verdict

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from cluster.hosts import Cluster

RANKS = 4
STEPS = str(Path(__file__).parent / "programs" / "steps.py")
LAUNCH = [*UNILAUNCH, "launch", "--mpirun", MPIRUN, "--allow-run-as-root", "--max-restarts", "1"]
DIRECT = [*UNILAUNCH, "launch", "--launcher", "direct", "--max-restarts", "1", "-n", str(RANKS)]
HERE = ["-n", str(RANKS), "--oversubscribe"]
ON_HOSTS = ["-H", "node0:2,node1:1,node2:1", "--bind-to", "none"]
#: Its own store of rank 0's address would be shared by both starts, and the second would read the first one's.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TORCHRUN = [
    str(Path(sys.executable).parent / "torchrun"),
    "--standalone",
    "--nproc-per-node",
    str(RANKS),
    "--max-restarts",
    "1",
]
GCN = ["--epochs", "1000000", "--checkpoint-every", "25", "--threads", "1", "--data-dir", "data"]
#: The processes among which the rank is that is killed.
Pids = Callable[[], Iterable[int]]


class Times(NamedTuple):
    """Seconds from the command, and from SIGKILL, to the first epoch or step that has ended since then."""

    start: float
    restart: float


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()
    if options.hosts:
        with tempfile.TemporaryDirectory() as keys, Cluster(3, Path(keys)) as cluster:
            return 0 if _on_hosts(cluster, options.rounds) else 1
    return 0 if _here(options.rounds) else 1


def _here(rounds: int) -> bool:
    taken: dict[str, list[Times]] = {"GCN, direct": [], "GCN, mpirun": [], "script, direct": [], "script, torchrun": []}
    for _ in range(rounds):
        for name, line, seconds in (
            ("GCN, direct", [*DIRECT, *GCN], _gcn),
            ("GCN, mpirun", [*LAUNCH, *HERE, *GCN], _gcn),
            ("script, direct", [*DIRECT, STEPS, "."], _script),
            ("script, torchrun", [*TORCHRUN, STEPS, "."], _script),
        ):
            with tempfile.TemporaryDirectory() as folder, _job_here(line, Path(folder)) as pids:
                taken[name].append(seconds(Path(folder), pids))
    middle = _print(taken)
    kept = verdict("seconds to a GCN's next epoch", middle["GCN, direct"], 0.7)
    ratios = [times.restart / times.start for times in taken["GCN, mpirun"]]
    kept = verdict("GCN, mpirun: restart / start", statistics.median(ratios), 1.5) and kept
    return verdict("direct / torchrun", middle["script, direct"] / middle["script, torchrun"], 1.0) and kept


def _on_hosts(cluster: Cluster, rounds: int) -> bool:
    taken: dict[str, list[Times]] = {"GCN, 3 hosts": [], "script, 3 hosts": []}
    for _ in range(rounds):
        for name, program, seconds in (("GCN, 3 hosts", GCN, _gcn), ("script, 3 hosts", [STEPS, "."], _script)):
            with tempfile.TemporaryDirectory() as folder:
                cluster.start(0, [*LAUNCH, *ON_HOSTS, *program], Path(folder))
                try:
                    taken[name].append(seconds(Path(folder), lambda: cluster.pids(1)))
                finally:
                    cluster.sweep()
    middle = _print(taken)
    kept = verdict("seconds to a GCN's next epoch", middle["GCN, 3 hosts"], 3.0)
    return verdict("seconds to a script's next step", middle["script, 3 hosts"], 3.0) and kept


def _print(taken: dict[str, list[Times]]) -> dict[str, float]:
    """Print the table, and return the median seconds of each restart."""
    middle = {}
    for name, times in taken.items():
        starts, restarts = zip(*times, strict=True)
        middle[name] = statistics.median(restarts)
        print(
            f"{name:18} start {statistics.median(starts):6.2f} s, restart {middle[name]:6.2f} s  "
            f"({min(restarts):.2f} to {max(restarts):.2f})"
        )
    return middle


@contextmanager
def _job_here(line: list[str], folder: Path) -> Iterator[Pids]:
    with subprocess.Popen(
        line, cwd=folder, env=environment() | OWN_STORE, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        try:
            yield lambda: [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        finally:
            (folder / "end").touch()
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)


def _gcn(folder: Path, pids: Pids) -> Times:
    """Kill a rank of a GCN, which starts now."""
    begin = time.time()
    log = folder / "log_output" / "rank.0" / "stderr"
    _until(lambda: log.exists() and "epoch 1/" in log.read_text())
    start = time.time() - begin
    _until(lambda: any((folder / "log_output" / "checkpoints").glob("epoch-*")))
    time.sleep(1)
    killed = time.time()
    os.kill(_rank(folder, pids()), signal.SIGKILL)
    _until(lambda: log.exists() and bool(re.search(r"resumed after epoch[^\n]*\n[^\n]*epoch \d+/", log.read_text())))
    return Times(start, time.time() - killed)


def _script(folder: Path, pids: Pids) -> Times:
    """Kill a rank of the script, which starts now."""
    begin = time.time()
    _until(lambda: len(list(folder.glob("step.0.?"))) == RANKS)
    start = time.time() - begin
    time.sleep(1)
    killed = time.time()
    os.kill(_rank(folder, pids()), signal.SIGKILL)
    _until(lambda: len(list(folder.glob("step.1.?"))) == RANKS)
    return Times(start, max(float(path.read_text()) for path in folder.glob("step.1.?")) - killed)


def _rank(folder: Path, pids: Iterable[int]) -> int:
    """Return a rank's process: one that runs Python in *folder*, as the process does that has started it."""
    parents = {}
    for pid in pids:
        path = Path(f"/proc/{pid}")
        try:
            if (path / "cwd").readlink() == folder and "python" in (path / "exe").readlink().name:
                parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return max(pid for pid, parent in parents.items() if parent in parents and pid not in parents.values())


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the job did not come as far in 60 s")
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
