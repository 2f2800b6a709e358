"""Seconds per epoch on 2 ranks of one thread each, beside PyG's GCNConv in its fastest form on the same processors.

    python benchmarks/epoch.py [--rounds 3]

100,000 nodes, 4.5 million directed edges, 300 features, 3 layers, 128 hidden, 40 classes, no dropout. PyG: normalised
CSR adjacency, one process of two threads. The three are run in turn, round after round; medians of their epochs.
Bounds: torch at most a third of PyG, MindSpore at most 1.3 times torch. Needs: pip install 'unilaunch[bench]'.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from graphs import make_graph
from runs import environment, train, verdict

EPOCHS = 8
OPTIONS = ["--layers", "3", "--hidden", "128", "--dropout", "0", "--weight-decay", "0", "--no-normalize-features"]


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    graph = make_graph(chosen.folder)
    seconds: dict[str, list[float]] = {"PyG": [], "torch": [], "mindspore": []}
    memory: dict[str, float] = {}
    for _ in range(chosen.rounds):
        epochs, memory["PyG"] = _pyg(graph)
        seconds["PyG"] += epochs
        for backend in ("torch", "mindspore"):
            result = train(
                2, *OPTIONS, "--dataset", str(graph), "--backend", backend, "--threads", "1", "--epochs", str(EPOCHS),
                "--eval-every", str(EPOCHS), "--partition-dir", str(chosen.folder / "partitions"),
            )  # fmt: skip
            seconds[backend].append(result["seconds_per_epoch"])
            memory[backend] = max(rank["peak_memory_bytes"] for rank in result["ranks"])
            assert result["loss"][-1] < result["loss"][0]
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{'':10} {'s/epoch':>8} {'of PyG':>7} {'peak MB of a process':>21}")
    for name, time in median.items():
        print(f"{name:10} {time:8.3f} {time / median['PyG']:7.2f} {memory[name] / 2**20:21.0f}")
    kept = verdict("torch / PyG", median["torch"] / median["PyG"], 1 / 3)
    kept &= verdict("mindspore / torch", median["mindspore"] / median["torch"], 1.3)
    return 0 if kept else 1


def _pyg(graph: Path) -> tuple[list[float], float]:
    program = Path(__file__).with_name("pyg_epoch.py")
    threads = environment(OMP_NUM_THREADS="2", MKL_NUM_THREADS="2")
    line = [sys.executable, str(program), str(graph), str(EPOCHS // 2)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=900, env=threads)
    measured = json.loads(done.stdout.splitlines()[-1])
    return measured["seconds"], measured["peak_memory_bytes"]


if __name__ == "__main__":
    sys.exit(main())
