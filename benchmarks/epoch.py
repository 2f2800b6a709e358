"""Seconds per epoch on 2 ranks of one thread each, beside PyG and DGL on the same processors.

    python benchmarks/epoch.py [--rounds 3] [--kinds gcn gat sage] [--dropouts 0 0.5] [--dgl PYTHON] [--unbound]
        [--nodes 100000] [--folder DIR]
    python benchmarks/epoch.py --starts [--rounds 3]

The ranks are started as users start them, `mpirun -n 2`, which binds each to a core of its own; --unbound: not so.

100,000 nodes, 4.5 million directed edges, 300 features, no L2, features as they are. GCN: 3 layers, 128 hidden, 40
classes. The peers run in one process of two threads, DGL in the environment of PYTHON (see dgl_epoch.py), each in these
forms:
    tutorial  as their tutorials write it: dropout of the hidden rows only; PyG normalises edge_index in each epoch
    same      the network of unilaunch's rows: dropout of the features too; PyG on a CSR matrix that is normalised once
    ahead     A X is made before the first epoch, with dropout of the hidden rows only
unilaunch drops the features too, as the GCN paper; without dropout it makes A X ahead by itself. `columns`: how many
columns of rows an epoch aggregates over the edges, forward and backward. The floor, of dropout 0: see floor.py.
GAT and SAGE: own_models.py's programs, two layers, without dropout.

--starts: instead of all that, our GCN on 2, 4 and 8 ranks under a direct start (sockets and shared memory) and under
mpirun (MPI), both by `launch`; 4 and 8 ranks share the processors. Bound 1.05.

All in turn, round after round; medians of their epochs, and of the ratios in a round. The graph and its partition are
made ahead, and kept in DIR. Needs: pip install 'unilaunch[bench]'.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import own_models
from graphs import make_graph
from mpirun import BOUND_LINE, LINE, MPIRUN, UNILAUNCH, execute, train, verdict
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.spec import TrainingSpec

#: Forms of the peers' GCN, and the columns that an epoch of it aggregates.
COLUMNS = {"tutorial": 592, "same": 592, "ahead": 336}
EPOCHS = {"floor": 1, "PyG": 4, "DGL": 7, "torch": 10, "bfloat16": 10, "mindspore": 10}
#: Dropout, one row, another, and the most that the first may take of the second.
BOUNDS = (
    (0.0, "torch", "DGL same", 0.32),
    (0.0, "torch", "floor", 1.45),
    (0.0, "bfloat16", "torch", 0.75),
    (0.0, "mindspore", "torch", 1.1),
    (0.5, "torch", "DGL same", 0.36),
    (0.5, "torch", "floor", 1.8),
    (0.5, "bfloat16", "torch", 0.75),
    (0.5, "mindspore", "torch", 1.1),
)
#: Rows of own_models.py: kind, way, and columns. PyG's SAGEConv aggregates 300 features; ours multiplies first.
LAYERS = (
    ("gat", "pyg", 336), ("gat", "own", 336), ("gat", "mindspore", 336),
    ("sage", "pyg", 556), ("sage", "csr", 556), ("sage", "own", 336), ("sage", "mindspore", 336),
)  # fmt: skip
OPTIONS = ["--layers", "3", "--hidden", "128", "--weight-decay", "0", "--threads", "1"]
HEAD = f"{'s/epoch':>8} {'least':>6} {'most':>6} {'columns':>7}  {'loss, first and last':22} peak MB"
Figures = dict[str, Any]


class Setting(NamedTuple):
    """What all rows of a table share."""

    graph: Path
    parts: Path
    dropout: float
    dgl: str | None
    line: list[str]

    @property
    def data(self) -> list[str]:
        """Options of unilaunch."""
        return ["--dataset", str(self.graph), "--partition-dir", str(self.parts), "--no-normalize-features"]


def main() -> int:
    """Measure, print the tables, and return 0 if all bounds are checked and kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["gcn", "gat", "sage"], choices=["gcn", "gat", "sage"])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--dgl", help="a Python that has dgl")
    parser.add_argument("--unbound", action="store_true", help="let both ranks run on all processors")
    parser.add_argument("--starts", action="store_true", help="compare a direct start with mpirun")
    chosen = parser.parse_args()
    if chosen.starts:
        graph = make_graph(chosen.folder, chosen.nodes)
        return 0 if _starts(Setting(graph, chosen.folder / "parts", 0.0, None, []), chosen.rounds) else 1
    graph, line = make_graph(chosen.folder, chosen.nodes), LINE if chosen.unbound else BOUND_LINE
    settings = [
        Setting(graph, chosen.folder / "parts", dropout, chosen.dgl, line)
        for dropout in chosen.dropouts if "gcn" in chosen.kinds
    ]  # fmt: skip
    execute(
        [*UNILAUNCH, "partition", *Setting(graph, chosen.folder / "parts", 0, None, line).data, "--num-parts", "2"], 600
    )
    kept = [_gcn(setting, chosen.rounds) for setting in settings]
    if layers := [row for row in LAYERS if row[0] in chosen.kinds]:
        _layers(layers, graph, chosen.folder / "parts", [*line, "2"], chosen.rounds)
    return 0 if all(kept) else 1


def _starts(setting: Setting, rounds: int) -> bool:
    """Print the seconds of an epoch under both starts, and return whether the bounds are kept."""
    ways = {"direct": ["--launcher", "direct"], "mpirun": ["--mpirun", MPIRUN, "--allow-run-as-root"]}
    options = ["gcn", *setting.data, *OPTIONS, "--epochs", "15", "--eval-every", "15", "--backend", "torch"]
    kept = True
    for ranks in (2, 4, 8):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, words in ways.items():
                crowded = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) else []
                with tempfile.TemporaryDirectory() as folder:
                    line = [*UNILAUNCH, "launch", "-n", str(ranks), *words, *crowded, "--output-dir", f"{folder}/out"]
                    execute([*line, *options], 900)
                    result = json.loads(Path(folder, "out", "result.json").read_text(encoding="utf-8"))
                seconds[way].append(result["seconds_per_epoch"])
        middle = {way: statistics.median(taken) for way, taken in seconds.items()}
        print(f"{ranks} ranks: " + ", ".join(f"{way} {taken:.4f} s" for way, taken in middle.items()))
        ratios = [one / other for one, other in zip(*seconds.values(), strict=True)]
        kept &= verdict(f"{ranks} ranks: direct / mpirun", statistics.median(ratios), 1.05)
    return kept


def _gcn(setting: Setting, rounds: int) -> bool:
    """Print the table of one dropout, and return whether its bounds are kept."""
    forms = ("tutorial", "same", "ahead")
    names = ["floor", *(f"{peer} {form}" for peer in ("PyG", "DGL") if peer == "PyG" or setting.dgl for form in forms)]
    names += ["torch", "bfloat16", "mindspore"]
    measured: dict[str, list[Figures]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            measured[name].append(_measure(name, setting))
    print(f"{f'GCN, dropout {setting.dropout:g}':17} {HEAD}")
    for name, runs in measured.items():
        print(_line(name, runs, _columns(name, setting)))
    kept = True
    for dropout, one, other, bound in BOUNDS:
        if dropout == setting.dropout and other not in measured:
            print(f"not checked: dropout {dropout:g}: {one} / {other}: no --dgl")
            kept = False
        elif dropout == setting.dropout:
            pairs = zip(measured[one], measured[other], strict=True)
            ratios = [a["seconds_per_epoch"] / b["seconds_per_epoch"] for a, b in pairs]
            kept &= verdict(f"dropout {dropout:g}: {one} / {other}", statistics.median(ratios), bound)
    return kept


def _measure(name: str, setting: Setting) -> Figures:
    """Return the figures of one training, or of the floor."""
    program, _, form = name.partition(" ")
    if program == "floor":
        arrays = np.load(setting.graph)
        sizes = [str(len(arrays["y"])), str(len(arrays["indices"]))]
        return {"seconds_per_epoch": float(execute([sys.executable, _beside("floor.py"), *sizes], 120))}
    if form:
        python = sys.executable if program == "PyG" else str(setting.dgl)
        line = [python, _beside(f"{program.lower()}_epoch.py"), str(setting.graph), str(EPOCHS[program])]
        line += [str(setting.dropout), form]
        figures = json.loads(execute(line, 900, OMP_NUM_THREADS="2", MKL_NUM_THREADS="2").splitlines()[-1])
    else:
        figures = _unilaunch(program, setting)
    loss = figures["loss"]
    assert all(map(math.isfinite, loss)), f"{name}: {loss}"
    assert loss[-1] < loss[0], f"{name}: {loss}"
    return dict(figures)


def _beside(name: str) -> str:
    return str(Path(__file__).with_name(name))


def _columns(name: str, setting: Setting) -> int | None:
    """Return how many columns an epoch aggregates, forward and backward; None of the floor."""
    form = name.partition(" ")[2]
    if form or name == "floor":
        return COLUMNS.get(form)
    spec = TrainingSpec(layers=3, hidden=128, dropout=setting.dropout)
    return sum(layer.exchanges * layer.width for layer in plan_layers(spec, 300, 40))


def _unilaunch(backend: str, setting: Setting) -> Figures:
    epochs = str(EPOCHS[backend])
    kind = ["torch", "--precision", "bfloat16"] if backend == "bfloat16" else [backend]
    options = [*setting.data, *OPTIONS, "--dropout", str(setting.dropout), "--backend", *kind]
    return train(2, *options, "--epochs", epochs, "--eval-every", epochs, line=setting.line)


def _layers(rows: list[tuple[str, str, int]], graph: Path, parts: Path, line: list[str], rounds: int) -> None:
    """Print the table of attention and SAGE; own_models.py has their bounds."""
    measured: dict[tuple[str, str, int], list[Figures]] = {row: [] for row in rows}
    for _ in range(rounds):
        for kind, way, columns in rows:
            figures = own_models.measure(line, [way, kind, str(graph), str(parts)])
            measured[kind, way, columns].append(figures)
    print(f"{'two layers':17} {HEAD}, of all ranks")
    for (kind, way, columns), runs in measured.items():
        print(_line(f"{kind} {way}", [{**run, "ranks": [run]} for run in runs], columns))


def _line(name: str, runs: list[Figures], columns: int | None) -> str:
    """Return a line of a table; of the floor, whose columns are None, only its seconds."""
    times = [run["seconds_per_epoch"] for run in runs]
    line = f"{name:17} {statistics.median(times):8.3f} {min(times):6.3f} {max(times):6.3f}"
    if columns is None:
        return line
    loss = runs[-1]["loss"]
    peak = ", ".join(f"{rank['peak_memory_bytes'] / 2**20:.0f}" for rank in runs[-1]["ranks"])
    ends = f"{loss[0]:.4f} {loss[-1]:.4f} ({len(loss)})"
    return f"{line} {columns:7}  {ends:22} {peak}"


if __name__ == "__main__":
    sys.exit(main())
