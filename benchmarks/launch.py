"""From the command to all ranks past a first barrier: hand-written mpirun, unilaunch, torchrun and msrun.

    python benchmarks/launch.py [--rounds 5] [--ranks 2 4 8]

Interleaved, medians; one thread for each rank. Bounds: unilaunch launch at most 1.1 of the hand-written line, below 0.8
of torchrun, below 0.3 of msrun.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mpirun import LINE, UNILAUNCH, environment, verdict

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
DEADLINE = 120.0


def main() -> int:
    """Measure, print the table, and return 0 if all bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    kept = True
    print(f"{'ranks':>5}  {'line':28} {'s to the barrier':>17} {'s to the end':>13}")
    for size in options.ranks:
        medians = _measure(_torch(size), size, options.rounds)
        launch = medians["unilaunch launch"]
        kept &= verdict(f"{size} ranks: launch / by hand", launch / medians["mpirun, by hand"], 1.1)
        kept &= verdict(f"{size} ranks: launch / torchrun", launch / medians["torchrun"], 0.8)
    for size in options.ranks:
        medians = _measure(_mindspore(size), size, max(1, options.rounds // 2))
        kept &= verdict(f"{size} ranks: launch / msrun", medians["unilaunch launch, MindSpore"] / medians["msrun"], 0.3)
    return 0 if kept else 1


def _torch(size: int) -> dict[str, list[str]]:
    script = str(PROGRAMS / "torch_barrier.py")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    by_hand = [sys.executable, str(PROGRAMS / "torch_by_hand.py"), str(port)]
    return {
        "mpirun, by hand": [*LINE, str(size), *by_hand],
        "unilaunch launch": [*UNILAUNCH, "launch", "-n", str(size), "--oversubscribe", "--console", "all", script],
        "the same, every rank imports": [
            *UNILAUNCH, "launch", "-n", str(size), "--oversubscribe", "--console", "all", "--no-share-import", script
        ],
        "mpirun, unilaunch run": [*LINE, str(size), *UNILAUNCH, "run", script],
        "torchrun": [str(BIN / "torchrun"), "--nproc-per-node", str(size), script],
    }  # fmt: skip


def _mindspore(size: int) -> dict[str, list[str]]:
    script = str(PROGRAMS / "mindspore_sum.py")
    workers = ["--worker_num", str(size), "--local_worker_num", str(size), "--join", "True", "--log_dir", "msrun"]
    return {
        "unilaunch launch, MindSpore": [
            *UNILAUNCH, "launch", "-n", str(size), "--oversubscribe", "--console", "all", script
        ],
        "msrun": [str(BIN / "msrun"), *workers, script],
    }  # fmt: skip


def _measure(lines: dict[str, list[str]], size: int, rounds: int) -> dict[str, float]:
    """Return each line's median seconds to the barrier."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in lines}
    for _ in range(rounds):
        for name, line in lines.items():
            times[name].append(_run(line, size))
    medians = {}
    for name, taken in times.items():
        barrier, end = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{size:5}  {name:28} {barrier:17.2f} {end:13.2f}", flush=True)
        medians[name] = barrier
    return medians


def _run(line: list[str], size: int) -> tuple[float, float]:
    """Return the seconds until the last rank was past the barrier, and until the command's end."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        done = subprocess.run(
            line, cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE,
            env=environment(OMP_NUM_THREADS="1"),
        )  # fmt: skip
        end = time.monotonic()
        said = done.stdout + "".join(log.read_text() for log in Path(folder, "msrun").glob("worker_*.log"))
    # A set: msrun shows some workers' output twice.
    moments = {float(text.split()[1]) for text in said.splitlines() if text.startswith("PAST ")}
    if len(moments) != size:
        raise RuntimeError(f"{' '.join(line)}: {len(moments)} of {size} ranks came so far\n{said}{done.stderr}")
    return max(moments) - begin, end - begin


if __name__ == "__main__":
    sys.exit(main())
