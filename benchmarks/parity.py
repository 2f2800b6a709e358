"""How far the loss curves of Cora lie apart: 1, 2, 3 and 4 parts, torch and MindSpore, over 200 epochs.

    python benchmarks/parity.py [--seeds 5]
    python benchmarks/parity.py --own-layers [--epochs 100] [--data-dir DIR] [--graphs directed cora amazon_photo]
    python benchmarks/parity.py --distribute [--epochs 100] [--data-dir DIR] [--graphs directed cora amazon_photo]

With --own-layers: `ug.torch`'s and `ug.mindspore`'s GATConv and SAGEConv, and a layer that calls `halo` itself, on 3
parts in float64 against PyG's layers in one process. Four ways to start the ranks, and three graphs: Cora, Amazon
Photo, and a directed, weighted one with isolated nodes and a part without training nodes. The difference is the
largest of a loss, a final weight or a score of a node. The line `PyG` compares PyG with itself, its edges in another
order, in one process: some trainings let rounding grow, and then the bound is a hundred times that line, not 1e-10.

With --distribute: models of PyG that are not changed (GATConv, SAGEConv, GINConv, TransformerConv, GCNConv and a class
of a user's own) on 1 to 4 parts in the same way.

The table compares each with torch on one part; the bounds (1e-10 in float64, 1e-5 in float32) are on the two curves of
the same seed that lie furthest apart, whichever they are. Reads ../shared/datasets/planetoid.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mpirun import MPIRUN, SHARED, UNILAUNCH, execute, train, verdict

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from jobs import own_models
from jobs.own_layers import PROGRAMS, difference, train_by_pyg, write_directed_graph

BOUNDS = {"float64": 1e-10, "float32": 1e-5}
RUNS = [(backend, parts) for backend in ("torch", "mindspore") for parts in (1, 2, 3, 4)]
EPOCHS = 200
#: Of `jobs.own_layers`.
KINDS = ("gat", "sage", "weighted")
GRAPHS = ("directed", "cora", "amazon_photo")
#: Three ranks share two cores: who waits leaves them to the others.
PATIENT = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
_SHARE = ["--oversubscribe", "-n", "3"]
STARTS = {
    "Open MPI 4": ["/usr/bin/mpirun", *_SHARE, sys.executable],
    "Open MPI 5": [MPIRUN, *_SHARE, sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3"],
    "launch": [*UNILAUNCH, "launch", "--allow-run-as-root", "--mpirun", MPIRUN, *_SHARE],
}


def main() -> int:
    """Train for every seed, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--own-layers", action="store_true")
    parser.add_argument("--distribute", action="store_true")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--data-dir", type=Path, default=SHARED)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=GRAPHS)
    options = parser.parse_args()
    if options.own_layers:
        return 0 if _own_layers(options.epochs, options.data_dir.absolute(), options.graphs) else 1
    if options.distribute:
        return 0 if _distribute(options.epochs, options.data_dir.absolute(), options.graphs) else 1
    return 0 if _gcn(options.seeds) else 1


def _gcn(seeds: int) -> bool:
    kept = True
    print(f"{'precision':10} {'backend':10} {'parts':>5} {'greatest difference':>20} {'of seed':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "planetoid").symlink_to(SHARED / "planetoid")
        for precision, bound in BOUNDS.items():
            curves = np.empty((len(RUNS), seeds, EPOCHS))
            for number, (backend, parts) in enumerate(RUNS):
                for seed in range(seeds):
                    options = ["--precision", precision, "--backend", backend, "--seed", str(seed)]
                    curves[number, seed] = _losses(parts, folder, *options)
                apart = np.abs(curves[number] - curves[0]).max(axis=1)
                print(f"{precision:10} {backend:10} {parts:5} {apart.max():20.1e} {apart.argmax():8}", flush=True)
            assert np.isfinite(curves).all()
            assert (curves[:, :, -1] < curves[:, :, 0]).all()
            furthest = float((curves.max(axis=0) - curves.min(axis=0)).max())
            kept &= verdict(f"{precision}, any two", furthest, bound)
    return kept


def _own_layers(epochs: int, data_dir: Path, graphs: Sequence[str]) -> bool:
    """Print a table of graph, framework and launcher, and return whether each difference keeps its bound."""
    furthest = 0.0  # as a share of its bound
    print(f"{'graph':13} {'framework':10} {'start':11} " + " ".join(f"{kind:>8}" for kind in KINDS), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _graphs(folder, data_dir)
        for graph in graphs:
            dataset = paths[graph]
            np.savez(folder / "out.npz", **train_by_pyg(dataset, folder, KINDS, epochs, shuffle_edges=True))
            expected = train_by_pyg(dataset, folder, KINDS, epochs)
            itself = difference(folder / "out.npz", expected, KINDS)
            _print_row(graph, "PyG", "1 process", itself)
            for framework, program in PROGRAMS.items():
                for start, line in STARTS.items():
                    own = ["--output-dir", f"{name}/log", program, "--"] if start == "launch" else [program]
                    execute([*line, *own, dataset, name, f"{name}/out.npz", str(epochs), *KINDS], 900.0, **PATIENT)
                    apart = difference(folder / "out.npz", expected, KINDS)
                    _print_row(graph, framework.partition("_")[0], start, apart)
                    furthest = max(
                        furthest, *(apart[kind] / max(BOUNDS["float64"], 100 * itself[kind]) for kind in KINDS)
                    )
    return verdict("own layers / bound", furthest, 1.0)


def _distribute(epochs: int, data_dir: Path, graphs: Sequence[str]) -> bool:
    """Print a table of graph, parts and launcher, and return whether each difference keeps its bound."""
    furthest = 0.0  # as a share of its bound
    kinds = own_models.KINDS
    print(f"{'graph':13} {'parts':10} {'start':11} " + " ".join(f"{kind:>8.8}" for kind in kinds), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _graphs(folder, data_dir)
        for graph in graphs:
            dataset = paths[graph]
            np.savez(folder / "out.npz", **own_models.train_by_pyg(dataset, folder, epochs, shuffle_edges=True))
            expected = own_models.train_by_pyg(dataset, folder, epochs)
            itself = own_models.differences(folder / "out.npz", kinds, expected)
            _print_row(graph, "PyG", "1 process", itself)
            for parts, start, line in _lines(name, own_models.PROGRAM):
                execute([*line, dataset, name, f"{name}/out.npz", str(epochs), *kinds], 1200.0, **PATIENT)
                apart = own_models.differences(folder / "out.npz", kinds, expected)
                _print_row(graph, str(parts), start, apart)
                bounds = {kind: max(BOUNDS["float64"], 100 * itself[kind]) for kind in kinds}
                furthest = max(furthest, *(apart[kind] / bounds[kind] for kind in kinds))
    return verdict("distribute / bound", furthest, 1.0)


def _lines(folder: str, program: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield parts, launcher and command: 3 parts under each launcher, 1, 2 and 4 under one."""
    yield 1, "none", [sys.executable, program]
    for parts in (2, 4):
        line = [str(parts) if word == "3" else word for word in STARTS["launch"]]
        yield parts, "launch", [*line, "--output-dir", f"{folder}/log", program, "--"]
    for start, line in STARTS.items():
        own = ["--output-dir", f"{folder}/log", program, "--"] if start == "launch" else [program]
        yield 3, start, [*line, *own]


def _graphs(folder: Path, data_dir: Path) -> dict[str, str]:
    folder.joinpath("planetoid").symlink_to(data_dir / "planetoid")
    write_directed_graph(folder / "directed.npz")
    photo = str(data_dir / "graphs" / "amazon_photo.npz")
    return dict(zip(GRAPHS, (str(folder / "directed.npz"), "cora", photo), strict=True))


def _print_row(graph: str, framework: str, start: str, apart: dict[str, float]) -> None:
    print(f"{graph:13} {framework:10} {start:11} " + " ".join(f"{one:8.1e}" for one in apart.values()), flush=True)


def _losses(parts: int, folder: str, *options: str) -> list[float]:
    data = ["--dataset", "cora", "--data-dir", folder, "--partition-dir", f"{folder}/parts"]
    losses: list[float] = train(parts, *data, *options, "--epochs", str(EPOCHS), "--eval-every", str(EPOCHS))["loss"]
    return losses


if __name__ == "__main__":
    sys.exit(main())
