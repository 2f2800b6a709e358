"""Seconds per epoch on 2 ranks of one thread each, beside PyG and DGL in their fastest forms on the same processors.

    python benchmarks/epoch.py [--rounds 3] [--folder DIR] [--dgl PYTHON] [--unbound]

The ranks are started as users start them, `mpirun -n 2`, which binds each to a core of its own; --unbound: not so.

100,000 nodes, 4.5 million directed edges, 300 features, 3 layers, 128 hidden, 40 classes, no dropout, no L2, features
as they are. PyG: normalised CSR adjacency, one process of two threads; DGL: the same, in the environment of PYTHON (see
dgl_epoch.py). The floor: see floor.py. All in turn, round after round; medians of their epochs, and of the ratios in a
round. Bounds: torch at most 0.2 of PyG, 0.5 of DGL and 2.5 of the floor, MindSpore at most 1.1 of torch. The graph and
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
from mpirun import BOUND_LINE, LINE, UNILAUNCH, execute, train, verdict

EPOCHS = {"floor": 1, "PyG": 5, "DGL": 7, "torch": 10, "bfloat16": 10, "mindspore": 10}
BOUNDS = (("torch", "PyG", 0.2), ("torch", "DGL", 0.5), ("mindspore", "torch", 1.1), ("torch", "floor", 2.5))
OPTIONS = ["--layers", "3", "--hidden", "128", "--dropout", "0", "--weight-decay", "0", "--threads", "1"]
FLOOR = str(Path(__file__).with_name("floor.py"))


def main() -> int:
    """Measure, print the table, and return 0 if all bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--dgl", help="a Python that has dgl")
    parser.add_argument("--unbound", action="store_true", help="let both ranks run on all processors")
    chosen = parser.parse_args()
    names = [name for name in EPOCHS if name != "DGL" or chosen.dgl]
    graph = make_graph(chosen.folder)
    data = ["--dataset", str(graph), "--partition-dir", str(chosen.folder / "parts"), "--no-normalize-features"]
    execute([*UNILAUNCH, "partition", *data, "--num-parts", "2"], 600)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    last: dict[str, dict[str, Any]] = {}
    for _ in range(chosen.rounds):
        for name in names:
            last[name] = _measure(name, graph, data, chosen)
            seconds[name].append(last[name]["seconds_per_epoch"])
    print(f"{'':10} {'s/epoch':>8} {'of PyG':>7} {'least':>6} {'most':>6}  {'loss, first and last':22} peak MB")
    slow = statistics.median(seconds["PyG"])
    for name, times in seconds.items():
        time = statistics.median(times)
        print(f"{name:10} {time:8.3f} {time / slow:7.3f} {min(times):6.3f} {max(times):6.3f}  {_ends(last[name])}")
    kept = True
    for one, other, bound in BOUNDS:
        if other in names:
            ratios = [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]
            kept &= verdict(f"{one} / {other}", statistics.median(ratios), bound)
    return 0 if kept else 1


def _measure(name: str, graph: Path, data: list[str], chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one training, or of the floor."""
    if name == "floor":
        return {"seconds_per_epoch": float(execute([sys.executable, FLOOR], 120))}
    if name in {"PyG", "DGL"}:
        python = sys.executable if name == "PyG" else chosen.dgl
        figures = _peer(python, f"{name.lower()}_epoch.py", graph, EPOCHS[name])
    else:
        figures = _unilaunch(name, data, LINE if chosen.unbound else BOUND_LINE)
    loss = figures["loss"]
    assert all(map(math.isfinite, loss)), f"{name}: {loss}"
    assert loss[-1] < loss[0], f"{name}: {loss}"
    return figures


def _ends(figures: dict[str, Any]) -> str:
    if "loss" not in figures:
        return ""
    loss = figures["loss"]
    peak = ", ".join(f"{rank['peak_memory_bytes'] / 2**20:.0f}" for rank in figures["ranks"])
    ends = f"{loss[0]:.4f} {loss[-1]:.4f} ({len(loss)})"
    return f"{ends:22} {peak}"


def _peer(python: str, program: str, graph: Path, epochs: int) -> dict[str, Any]:
    line = [python, str(Path(__file__).with_name(program)), str(graph), str(epochs)]
    measured: dict[str, Any] = json.loads(execute(line, 900, OMP_NUM_THREADS="2", MKL_NUM_THREADS="2").splitlines()[-1])
    return measured


def _unilaunch(backend: str, data: list[str], line: list[str]) -> dict[str, Any]:
    epochs = str(EPOCHS[backend])
    kind = ["torch", "--precision", "bfloat16"] if backend == "bfloat16" else [backend]
    training = [*data, *OPTIONS, "--backend", *kind, "--epochs", epochs, "--eval-every", epochs]
    return train(2, *training, line=line)


if __name__ == "__main__":
    sys.exit(main())
