"""How far the loss curves of Cora lie apart: 1, 2, 3 and 4 parts, torch and MindSpore, over 200 epochs.

    python benchmarks/parity.py [--seeds 5]
    python benchmarks/parity.py {--own-layers,--distribute} [--hosts] [--epochs 100] [--data-dir DIR]
        [--graphs directed cora ...] [--backends torch mindspore] [--parts 1 2 3 4] [--kinds gat sage ...]

The table compares each with torch on one part; the bounds (1e-10 in float64, 1e-5 in float32) are on the two curves of
the same seed that lie furthest apart, whichever they are. Reads ../shared/datasets/planetoid.

With --own-layers: `ug.torch`'s and `ug.mindspore`'s GATConv and SAGEConv, and a layer that calls `halo` itself, on 1 to
4 parts in float64 against PyG's layers in one process. One part has no launcher, 2 and 4 parts have `launch`, 3 parts
are started in four ways. Three graphs: Cora, Amazon Photo, and a directed, weighted one with isolated nodes and a part
without training nodes. The difference is the largest of a loss, a final weight or a score of a node. The line `PyG`
compares PyG with itself, its edges in another order, in one process: that is what rounding alone does. The line
`MindSpore` is a network of MindSpore's own operators in one process, compared with PyG like all others.

With --distribute: models of PyG that are not changed (GATConv, SAGEConv, GINConv, TransformerConv, GCNConv and a class
of a user's own) in the same way.

With --hosts the three parts are on three hosts, which are namespaces of this machine (tests/cluster/hosts.py; as root).
The other options leave out rows and columns: the whole table takes hours.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpirun import MPIRUN, SHARED, UNILAUNCH, execute, train, verdict

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from cluster.hosts import Cluster
from jobs import own_layers, own_models

BOUNDS = {"float64": 1e-10, "float32": 1e-5}
BACKENDS, PARTS = ("torch", "mindspore"), (1, 2, 3, 4)
RUNS = [(backend, parts) for backend in BACKENDS for parts in PARTS]
EPOCHS = 200
#: Of `jobs.own_layers`.
KINDS = ("gat", "sage", "weighted")
GRAPHS = ("directed", "cora", "amazon_photo")
#: Three ranks share two cores: who waits leaves them to the others.
PATIENT = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
_LAUNCH = [*UNILAUNCH, "launch", "--allow-run-as-root", "--mpirun", MPIRUN, "--output-dir", "{folder}/log"]
_SHARE = ["--oversubscribe", "-n"]
#: The commands that start three ranks, up to the program.
STARTS = {
    "Open MPI 4": ["/usr/bin/mpirun", *_SHARE, "3", sys.executable],
    "Open MPI 5": [MPIRUN, *_SHARE, "3", sys.executable],
    "torchrun": [*_TORCHRUN, "3"],
    "launch": [*_LAUNCH, *_SHARE, "3"],
}
_HOSTS = ["-H", "node0,node1,node2"]
_PATIENTLY = [word for name in PATIENT for word in ("-x", name)]
_THERE = ["--allow-run-as-root", *_HOSTS, "--bind-to", "none", *_PATIENTLY, sys.executable]
#: The same, one rank on each host; {host} is in a command that each host needs for itself.
ON_HOSTS = {
    "Open MPI 4": ["/usr/bin/mpirun", *_THERE],
    "Open MPI 5": [MPIRUN, *_THERE],
    "torchrun": [*_TORCHRUN, "1", "--nnodes=3", "--node-rank={host}", "--master-addr=node0"],
    "launch": [*_LAUNCH, *_HOSTS],
}


@dataclass(frozen=True)
class Study:
    """What is compared with PyG in one process.

    Attributes:
        name: What the verdict is about.
        kinds: The networks.
        programs: The program that trains them, by framework.
        plain: A program that trains them without us in one process, by framework: PyG is not the only measure.
        train_by_pyg: Makes the curves, weights and scores of PyG.
        differences: The largest difference from them, by kind.
    """

    name: str
    kinds: Sequence[str]
    programs: Mapping[str, str]
    plain: Mapping[str, str]
    train_by_pyg: Callable[..., dict[str, Any]]
    differences: Callable[[Path, dict[str, Any], Sequence[str]], dict[str, float]]


_PROGRAMS = Path(__file__).parent / "programs"
OWN_LAYERS = Study(
    "own layers", KINDS,
    {"torch_layers": str(_PROGRAMS / "own_torch_layers.py"), "mindspore": own_layers.PROGRAM},
    {"MindSpore": str(_PROGRAMS / "plain_mindspore.py")},
    own_layers.train_by_pyg, own_models.differences,
)  # fmt: skip
DISTRIBUTE = Study(
    "distribute", own_models.KINDS, {"torch": own_models.PROGRAM}, {},
    own_models.train_by_pyg, own_models.differences,
)  # fmt: skip


def main() -> int:
    """Train for every seed, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--own-layers", dest="study", action="store_const", const=OWN_LAYERS)
    parser.add_argument("--distribute", dest="study", action="store_const", const=DISTRIBUTE)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--data-dir", type=Path, default=SHARED)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=GRAPHS)
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--parts", nargs="+", type=int, default=PARTS, choices=PARTS)
    parser.add_argument("--kinds", nargs="+", choices=sorted({*OWN_LAYERS.kinds, *DISTRIBUTE.kinds}))
    options = parser.parse_args()
    if options.study is None:
        return 0 if _gcn(options.seeds) else 1
    with ExitStack() as kept:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory()))
        paths = _graphs(folder, options.data_dir.absolute())
        keys = folder / "hosts"
        keys.mkdir()
        cluster = kept.enter_context(Cluster(3, keys)) if options.hosts else None
        graphs = {name: paths[name] for name in options.graphs}
        return 0 if _compare(options, graphs, folder, cluster) else 1


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


def _rows(options: argparse.Namespace, cluster: Cluster | None) -> Iterator[tuple[str, str, int, str, list[str]]]:
    """Yield backend, program, parts, launcher and command of each row that is not left out."""
    for backend, program in options.study.plain.items():
        if backend.lower() in options.backends and 1 in options.parts:
            yield backend, program, 1, "1 process", [sys.executable]
    for name, program in options.study.programs.items():
        backend = name.partition("_")[0]
        for parts, start, line in _starts(cluster):
            if backend in options.backends and parts in options.parts:
                yield backend, program, parts, start, line


def _starts(cluster: Cluster | None) -> Iterator[tuple[int, str, list[str]]]:
    """Yield parts, launcher and command: 3 parts under each launcher; 1, 2 and 4 parts of one host in one way."""
    if not cluster:
        yield 1, "none", [sys.executable]
        for parts in (2, 4):
            yield parts, "launch", [*_LAUNCH, *_SHARE, str(parts)]
    for start, line in (ON_HOSTS if cluster else STARTS).items():
        yield 3, start, line


def _compare(options: argparse.Namespace, graphs: Mapping[str, str], folder: Path, cluster: Cluster | None) -> bool:
    """Print a table of graph, backend, parts and launcher, and return whether each difference keeps its bound."""
    study, epochs, furthest = options.study, options.epochs, 0.0
    kinds = [kind for kind in study.kinds if kind in (options.kinds or study.kinds)]
    _print_row("graph", "framework", "parts", "start", [f"{kind:>8.8}" for kind in kinds])
    for graph, dataset in graphs.items():
        found = folder / "out.npz"
        np.savez(found, **study.train_by_pyg(dataset, folder, kinds, epochs, shuffle_edges=True))
        expected = study.train_by_pyg(dataset, folder, kinds, epochs)
        _print_row(graph, "PyG", "1", "1 process", _numbers(study.differences(found, expected, kinds)))
        for backend, program, parts, start, line in _rows(options, cluster):
            found.unlink()
            _run([*line, program, dataset, str(folder), str(found), str(epochs), *kinds], folder, cluster)
            apart = study.differences(found, expected, kinds)
            _print_row(graph, backend, str(parts), start, _numbers(apart))
            furthest = max(furthest, *apart.values())
    return verdict(study.name, furthest, BOUNDS["float64"])


def _run(line: Sequence[str], folder: Path, cluster: Cluster | None, deadline: float = 1200.0) -> None:
    """Run a command to its end, on this machine or on the hosts."""
    lines = [[word.format(folder=folder, host=host) for word in line] for host in range(3)]
    if not cluster:
        execute(lines[0], deadline, **PATIENT)
        return
    jobs = [cluster.start(host, one, folder, PATIENT) for host, one in enumerate(lines) if not host or one != lines[0]]
    for job in jobs:
        job.finish(deadline).check()


def _graphs(folder: Path, data_dir: Path) -> dict[str, str]:
    folder.joinpath("planetoid").symlink_to(data_dir / "planetoid")
    own_layers.write_directed_graph(folder / "directed.npz")
    photo = str(data_dir / "graphs" / "amazon_photo.npz")
    return dict(zip(GRAPHS, (str(folder / "directed.npz"), "cora", photo), strict=True))


def _print_row(graph: str, framework: str, parts: str, start: str, cells: Sequence[str]) -> None:
    print(f"{graph:13} {framework:10} {parts:>5} {start:11} " + " ".join(cells), flush=True)


def _numbers(apart: Mapping[str, float]) -> list[str]:
    return [f"{one:8.1e}" for one in apart.values()]


def _losses(parts: int, folder: str, *options: str) -> list[float]:
    data = ["--dataset", "cora", "--data-dir", folder, "--partition-dir", f"{folder}/parts"]
    losses: list[float] = train(parts, *data, *options, "--epochs", str(EPOCHS), "--eval-every", str(EPOCHS))["loss"]
    return losses


if __name__ == "__main__":
    sys.exit(main())
