"""What `unilaunch plan` predicts of a training, beside what a run then takes.

    python benchmarks/forecast.py [memory | seconds] [--rounds 3] [--folder DIR]

memory: the peak memory of the largest rank (`peak_memory_bytes`), over 30 trainings; bound: within 15 %. A training has
three epochs, and its graphs are small, so that none takes more than 2 GB.
seconds: an epoch, on as many ranks as there are processors; plan and run in turn, medians; bound: within 25 %.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphs import make_graph
from mpirun import SHARED, UNILAUNCH, execute, train, verdict

PARTS = (1, 2)
#: Of memory: graph, ranks, options; each with both frameworks.
TRAININGS = (
    ("medium", 2, "--hidden 512"),
    ("sparse", 2, "--hidden 512 --conv sage"),
    ("medium", 1, "--hidden 16"),
    ("medium", 1, "--hidden 512 --layers 3"),
    ("medium", 1, "--conv sage --hidden 256 --layers 4"),
    ("medium", 1, "--conv gat --hidden 32"),
    ("doubles", 1, "--hidden 64"),
    ("doubles", 1, "--hidden 64 --dropout 0"),
    ("wide", 1, "--layers 1"),
    ("wide", 1, "--hidden 2048"),
    ("wide", 1, "--hidden 2048 --layers 4"),
    ("wide", 1, "--conv sage --hidden 1024 --layers 3"),
    ("wide", 1, "--conv gat --hidden 64 --layers 3"),
    ("sparse", 1, "--hidden 64"),
    ("sparse", 1, "--hidden 2048"),
)


def main() -> int:
    """Predict, measure, print the table, and return 0 if all predictions are close enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("memory", "seconds"), default="memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    kept = compare_memory(chosen.folder) if chosen.what == "memory" else compare_seconds(chosen.folder, chosen.rounds)
    return 0 if kept else 1


def compare_memory(folder: Path) -> bool:
    """Compare peaks of memory, and return whether each forecast is close enough."""
    sources = {
        "medium": _graph(folder, "medium", 20_000, 64),
        "wide": _graph(folder, "wide", 5_000, 64),
        "sparse": _graph(folder, "sparse", 10_000, 20_000, entries=30),
        "doubles": _graph(folder, "doubles", 20_000, 1_000, kind="float64"),
    }
    print(f"{'graph':7} {'backend':10} ranks  forecast MB  measured MB     error  training", flush=True)
    errors = []
    for name, ranks, text in TRAININGS:
        for backend in ("torch", "mindspore"):
            options = ["--dataset", str(sources[name]), *text.split(), "--backend", backend]
            forecast = _plan(options, (ranks,))[ranks]["peak_memory_bytes"]
            cached = ["--partition-dir", str(folder / "parts")]
            edges = ["--edges", "given" if "--conv" in options else "symmetric"]
            execute([*UNILAUNCH, "partition", *options[:2], *edges, "--num-parts", str(ranks), *cached], 600)
            measured = _peak(ranks, *options, *cached, "--epochs", "3", "--eval-every", "1")
            errors.append(forecast / measured - 1)
            sizes = f"{forecast / 1e6:11,.0f}  {measured / 1e6:11,.0f}  {errors[-1]:+8.1%}"
            print(f"{name:7} {backend:10} {ranks:5}  {sizes}  {text}", flush=True)
    return verdict(f"largest of {len(errors)} errors of the peak", max(map(abs, errors)), 0.15)


def compare_seconds(folder: Path, rounds: int) -> bool:
    """Compare seconds of an epoch, and return whether each forecast is close enough."""
    cases = {
        "communities": [str(make_graph(folder)), "--layers", "3", "--hidden", "128", "--dropout", "0"],
        "amazon_photo": [str(SHARED / "graphs" / "amazon_photo.npz"), "--hidden", "64"],
        "attention": [str(SHARED / "graphs" / "amazon_photo.npz"), "--conv", "gat", "--heads", "4", "--hidden", "16"],
    }
    print(f"{'graph':14} {'backend':10} ranks  predicted  measured  (s/epoch, slowest rank)", flush=True)
    kept = True
    for name, (source, *sizes) in cases.items():
        for backend in ("torch", "mindspore"):
            options = ["--dataset", source, *sizes, "--no-normalize-features", "--backend", backend]
            predicted: dict[int, list[float]] = {parts: [] for parts in PARTS}
            measured: dict[int, list[float]] = {parts: [] for parts in PARTS}
            for _ in range(rounds):
                for parts, row in _plan(options, PARTS).items():
                    predicted[parts].append(row["graph_seconds"])
                for parts in PARTS:
                    measured[parts].append(_run(parts, options, folder))
            for parts in PARTS:
                told, taken = statistics.median(predicted[parts]), statistics.median(measured[parts])
                print(f"{name:14} {backend:10} {parts:5}  {told:9.4f}  {taken:8.4f}", flush=True)
                kept &= verdict("|predicted / measured - 1|", abs(told / taken - 1), 0.25)
    return kept


def _plan(options: list[str], parts: tuple[int, ...]) -> dict[int, dict[str, float]]:
    line = [*UNILAUNCH, "plan", "--json", "--num-parts", ",".join(map(str, parts)), *options]
    rows = map(json.loads, execute(line, 600).splitlines())
    return {row["num_parts"]: row for row in rows}


def _peak(ranks: int, *options: str) -> int:
    """Train as `plan` measures, by `launch`, and return the peak of the largest rank."""
    with tempfile.TemporaryDirectory() as folder:
        start = ["launch", "--oversubscribe", "--allow-run-as-root", "-n", str(ranks), "--output-dir", folder]
        execute([*UNILAUNCH, *start, *options], 900)
        result = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    return max(int(rank["peak_memory_bytes"]) for rank in result["ranks"])


def _run(parts: int, options: list[str], folder: Path) -> float:
    kept = ["--partition-dir", str(folder / "parts"), "--epochs", "12", "--eval-every", "12"]
    return float(train(parts, *options, *kept)["seconds_per_epoch"])


def _graph(  # noqa: PLR0913  (the sizes of a graph, by name)
    folder: Path, name: str, nodes: int, features: int, *, entries: int | None = None, kind: str = "float32"
) -> Path:  # fmt: skip
    """Write a graph once, and return its path: about 12 edges of a node, four fifths of them among 100 neighbours.

    Args:
        folder: Where it is written.
        name: Its name.
        nodes: Number of nodes.
        features: Columns of the features.
        entries: Entries of a node's sparse features; None: they are dense.
        kind: Type of the dense ones.
    """
    path = folder / f"forecast-{name}.npz"
    if path.exists():
        return path
    draw, count, near = np.random.default_rng(0), 6 * nodes, 100
    sources = draw.integers(0, nodes, count)
    within = sources // near * near + draw.integers(0, near, count)
    targets = np.where(draw.random(count) < 0.8, within, draw.integers(0, nodes, count)) % nodes
    half = sp.coo_array((np.ones(count, bool), (sources, targets)), shape=(nodes, nodes)).tocsr()
    edges, use = sp.csr_array(half + half.T), draw.random(nodes)
    x: dict[str, Any]
    if entries is None:
        x = {"x": draw.standard_normal((nodes, features), np.float32).astype(kind)}
    else:
        columns = np.sort(
            draw.integers(0, features // entries, (nodes, entries)) + np.arange(entries) * (features // entries)
        )
        x = {
            "x_indptr": np.arange(nodes + 1) * entries, "x_indices": columns.ravel(),
            "x_data": np.ones(nodes * entries, np.float32), "x_shape": np.array([nodes, features]),
        }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        path, indptr=edges.indptr, indices=edges.indices, y=draw.integers(0, 10, nodes), train_mask=use < 0.6,
        val_mask=(use >= 0.6) & (use < 0.8), test_mask=use >= 0.8, **x,
    )  # fmt: skip
    return path


if __name__ == "__main__":
    sys.exit(main())
