"""From SIGKILL of one of four ranks to the next finished step: under `launch`, and under torchrun beside it.

    python benchmarks/restart.py [--rounds 5]

Each job starts, one of its ranks is killed after a second, and the job is started again: a GCN goes on from its newest
checkpoint to the end of an epoch, a script to the first step of all ranks. Medians. Bounds: 1.0 s for the GCN; for the
script not more than torchrun takes.
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
from collections.abc import Callable
from pathlib import Path

from mpirun import UNILAUNCH, environment, verdict

RANKS = 4
STEPS = str(Path(__file__).parent / "programs" / "steps.py")
LAUNCH = [*UNILAUNCH, "launch", "-n", str(RANKS), "--oversubscribe", "--allow-run-as-root", "--max-restarts", "1"]
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


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {"GCN, launch": [], "script, launch": [], "script, torchrun": []}
    for _ in range(rounds):
        taken["GCN, launch"].append(_measured([*LAUNCH, *GCN], _gcn))
        taken["script, launch"].append(_measured([*LAUNCH, STEPS, "--", "."], _script))
        taken["script, torchrun"].append(_measured([*TORCHRUN, STEPS, "."], _script))
    for name, seconds in taken.items():
        print(f"{name:18} {statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    middle = {name: statistics.median(seconds) for name, seconds in taken.items()}
    kept = verdict("seconds to a GCN's next epoch", middle["GCN, launch"], 1.0)
    return 0 if verdict("launch / torchrun", middle["script, launch"] / middle["script, torchrun"], 1.0) and kept else 1


def _measured(line: list[str], seconds: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with subprocess.Popen(
            line, cwd=folder, env=environment() | OWN_STORE, start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as job:  # fmt: skip
            try:
                return seconds(folder)
            finally:
                (folder / "end").touch()
                job.send_signal(signal.SIGTERM)
                try:
                    job.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(job.pid, signal.SIGKILL)


def _gcn(folder: Path) -> float:
    """Kill rank 1 of a GCN, and return the seconds to the end of the first epoch after that."""
    log = folder / "log_output" / "rank.0" / "stderr"
    _until(lambda: log.exists() and "epoch 1/" in log.read_text())
    _until(lambda: any((folder / "log_output" / "checkpoints").glob("epoch-*")))
    time.sleep(1)
    killed = time.time()
    os.kill(_pid_of_a_rank(folder), signal.SIGKILL)
    _until(lambda: log.exists() and bool(re.search(r"resumed after epoch[^\n]*\n[^\n]*epoch \d+/", log.read_text())))
    return time.time() - killed


def _script(folder: Path) -> float:
    """Kill rank 1 of the script, and return the seconds to the first step of all ranks after that."""
    _until(lambda: len(list(folder.glob("step.0.?"))) == RANKS)
    time.sleep(1)
    killed = time.time()
    os.kill(int((folder / "pid.0.1").read_text()), signal.SIGKILL)
    _until(lambda: len(list(folder.glob("step.1.?"))) == RANKS)
    return max(float(path.read_text()) for path in folder.glob("step.1.?")) - killed


def _pid_of_a_rank(folder: Path) -> int:
    """Return a rank's process: a leaf of the job's processes that is the agent's child."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == folder:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    agent = next(pid for pid in parents if list(parents.values()).count(pid) >= RANKS and _is_python(pid))
    return max(pid for pid, parent in parents.items() if parent == agent)


def _is_python(pid: int) -> bool:
    return "python" in Path(f"/proc/{pid}/exe").readlink().name


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the job did not come as far in 60 s")
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
