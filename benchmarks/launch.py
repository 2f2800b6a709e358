"""From the command to all ranks past a first barrier: hand-written mpirun, unilaunch, torchrun and msrun.

    python benchmarks/launch.py [--rounds 5] [--ranks 2 4 8] [--nodes]

Interleaved, medians; one thread for each rank. Bounds: a direct start at most 0.5, 0.35 and 0.25 of torchrun at 2, 4
and 8 ranks, below 0.3 of msrun; `run` under a bare mpirun at most 1.1 of the hand-written line. For scale: one rank
that plain Python starts, the least that any start of one process can take.

With --nodes: two ranks on each of two hosts, namespaces of this machine (tests/cluster/hosts.py; as root), by the same
line on each; bound 0.6 of torchrun.
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

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from cluster.hosts import Cluster

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
DEADLINE = 120.0
#: The most that a direct start may take, as a share of torchrun's time, by ranks; of other numbers the last.
OF_TORCHRUN = {2: 0.5, 4: 0.35, 8: 0.25}


def main() -> int:
    """Measure, print the table, and return 0 if all bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--nodes", action="store_true")
    options = parser.parse_args()
    if options.nodes:
        with tempfile.TemporaryDirectory() as keys, Cluster(2, Path(keys)) as cluster:
            return 0 if _on_two_nodes(cluster, options.rounds) else 1
    kept = True
    print(f"{'ranks':>5}  {'line':28} {'s to the barrier':>17} {'s to the end':>13}")
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    for size in options.ranks:
        medians = _measure(_torch(size), size, options.rounds)
        direct, run = medians["unilaunch launch"], medians["mpirun, unilaunch run"]
        kept &= verdict(f"{size} ranks: direct / torchrun", direct / medians["torchrun"], OF_TORCHRUN.get(size, 0.25))
        print(f"one plain Python / torchrun {medians['one rank, plain Python'] / medians['torchrun']:.2f}")
        kept &= verdict(f"{size} ranks: run / by hand", run / medians["mpirun, by hand"], 1.1)
    subprocess.run([sys.executable, "-c", "import mindspore"], check=True)  # the first import reads a disk
    for size in options.ranks:
        medians = _measure(_mindspore(size), size, max(1, options.rounds // 2))
        kept &= verdict(f"{size} ranks: launch / msrun", medians["unilaunch launch, MindSpore"] / medians["msrun"], 0.3)
    return 0 if kept else 1


def _torch(size: int) -> dict[str, list[str]]:
    script = str(PROGRAMS / "torch_barrier.py")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    alone = ["RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}"]
    by_hand = [sys.executable, str(PROGRAMS / "torch_by_hand.py"), str(port)]
    return {
        "mpirun, by hand": [*LINE, str(size), *by_hand],
        "unilaunch launch": [*UNILAUNCH, "launch", "-n", str(size), "--console", "all", script],
        "the same, by an mpirun": [
            *UNILAUNCH, "launch", "--launcher", "mpirun", "-n", str(size), "--oversubscribe", "--console", "all", script
        ],
        "mpirun, unilaunch run": [*LINE, str(size), *UNILAUNCH, "run", script],
        "torchrun": [str(BIN / "torchrun"), "--nproc-per-node", str(size), script],
        "one rank, plain Python": ["env", *alone, sys.executable, script],
    }  # fmt: skip


def _mindspore(size: int) -> dict[str, list[str]]:
    script = str(PROGRAMS / "mindspore_sum.py")
    workers = ["--worker_num", str(size), "--local_worker_num", str(size), "--join", "True", "--log_dir", "msrun"]
    return {
        "unilaunch launch, MindSpore": [
            *UNILAUNCH, "launch", "-n", str(size), "--console", "all", script
        ],
        "msrun": [str(BIN / "msrun"), *workers, script],
    }  # fmt: skip


def _measure(lines: dict[str, list[str]], size: int, rounds: int) -> dict[str, float]:
    """Return each line's median seconds to the barrier."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in lines}
    for _ in range(rounds):
        for name, line in lines.items():
            times[name].append(_run(line, 1 if name.startswith("one rank") else size))
    medians = {}
    for name, taken in times.items():
        barrier, end = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{size:5}  {name:28} {barrier:17.2f} {end:13.2f}", flush=True)
        medians[name] = barrier
    return medians


def _on_two_nodes(cluster: Cluster, rounds: int) -> bool:
    common = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", cluster.addresses[0], "--master-port", "29477"]
    starts = {
        "unilaunch launch": [*UNILAUNCH, "launch", *common, "--console", "all", "--node-rank"],
        "torchrun": [str(BIN / "torchrun"), *common, "--node-rank"],
    }
    variables = {"OMP_NUM_THREADS": "1", "UNILAUNCH_SECRET": "a-secret-of-this-benchmark"}
    script = str(PROGRAMS / "torch_barrier.py")
    times: dict[str, list[float]] = {name: [] for name in starts}
    for _ in range(rounds):
        for name, line in starts.items():
            with tempfile.TemporaryDirectory() as folder:
                begin = time.monotonic()
                jobs = [cluster.start(node, [*line, str(node), script], Path(folder), variables) for node in range(2)]
                output = "".join(job.finish(DEADLINE).check().stdout for job in jobs)
                logs = "".join(log.read_text() for log in Path(folder).glob("log_output/rank.*/stdout"))
            moments = {float(text.split()[1]) for text in (logs or output).splitlines() if text.startswith("PAST ")}
            times[name].append(max(moments) - begin)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, seconds in medians.items():
        print(f"2 nodes of 2 ranks  {name:28} {seconds:8.2f} s to the barrier")
    return verdict("2 nodes: direct / torchrun", medians["unilaunch launch"] / medians["torchrun"], 0.6)


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
