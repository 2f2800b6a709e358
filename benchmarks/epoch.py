"""Seconds per epoch on 2 ranks of one thread each, beside PyG's GCNConv in its fastest form on the same processors.

    python benchmarks/epoch.py [--rounds 3] [--folder DIR]

100,000 nodes, 4.5 million directed edges, 300 features, 3 layers, 128 hidden, 40 classes, no dropout, no L2, features
as they are. PyG: normalised CSR adjacency, one process of two threads. PyG, torch and MindSpore in turn, round after
round; medians of their epochs. Bounds: torch at most a third of PyG, MindSpore at most 1.3 times torch. The graph and
its partition are made ahead, and kept in DIR. Needs: pip install 'unilaunch[bench]'.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from graphs import make_graph
from mpirun import UNILAUNCH, execute, train, verdict

EPOCHS = {"PyG": 5, "torch": 10, "mindspore": 10}
OPTIONS = ["--layers", "3", "--hidden", "128", "--dropout", "0", "--weight-decay", "0", "--threads", "1"]


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    graph = make_graph(chosen.folder)
    data = ["--dataset", str(graph), "--partition-dir", str(chosen.folder / "parts"), "--no-normalize-features"]
    execute([*UNILAUNCH, "partition", *data, "--num-parts", "2"], 600)
    seconds: dict[str, list[float]] = {name: [] for name in EPOCHS}
    last: dict[str, dict[str, Any]] = {}
    for _ in range(chosen.rounds):
        for name in EPOCHS:
            last[name] = _pyg(graph) if name == "PyG" else _unilaunch(name, data)
            _check(name, last[name]["loss"])
            seconds[name].append(last[name]["seconds_per_epoch"])
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{'':10} {'s/epoch':>8} {'of PyG':>7} {'least':>6} {'most':>6}  {'loss, first and last':22} peak MB")
    for name, time in median.items():
        loss, times = last[name]["loss"], seconds[name]
        peak = ", ".join(f"{rank['peak_memory_bytes'] / 2**20:.0f}" for rank in last[name]["ranks"])
        ends = f"{loss[0]:.4f} {loss[-1]:.4f} ({len(loss)})"
        print(
            f"{name:10} {time:8.3f} {time / median['PyG']:7.3f} {min(times):6.3f} {max(times):6.3f}  {ends:22} {peak}"
        )
    kept = verdict("torch / PyG", median["torch"] / median["PyG"], 1 / 3)
    kept &= verdict("mindspore / torch", median["mindspore"] / median["torch"], 1.3)
    return 0 if kept else 1


def _pyg(graph: Path) -> dict[str, Any]:
    line = [sys.executable, str(Path(__file__).with_name("pyg_epoch.py")), str(graph), str(EPOCHS["PyG"])]
    measured: dict[str, Any] = json.loads(execute(line, 900, OMP_NUM_THREADS="2", MKL_NUM_THREADS="2").splitlines()[-1])
    return measured


def _unilaunch(backend: str, data: list[str]) -> dict[str, Any]:
    epochs = str(EPOCHS[backend])
    return train(2, *data, *OPTIONS, "--backend", backend, "--epochs", epochs, "--eval-every", epochs)


def _check(name: str, loss: list[float]) -> None:
    assert all(map(math.isfinite, loss)), f"{name}: {loss}"
    assert loss[-1] < loss[0], f"{name}: {loss}"


if __name__ == "__main__":
    sys.exit(main())
