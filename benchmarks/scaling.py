"""How an epoch grows with the edges, and with the ranks; and how much of the halo's journey is hidden.

    python benchmarks/scaling.py [--millions 1 4 16 64] [--folder DIR]

About 45 directed edges a node, 64 features, 2 layers of 64, 40 classes, no dropout. Time: 2 ranks of one thread; for
the first size that takes more than 0.1 s also 1 rank of one thread. Hidden: of the time that an exchange takes alone,
the share that does not show as waiting when the owned rows are multiplied meanwhile. Volume: halo rows counted on up to
64 parts of a graph that grows with them (weak scaling), per part.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from graphs import make_graph
from mpirun import LINE, UNILAUNCH, execute, train
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.partition.partitioners import assign
from unilaunch_graph.partition.statistics import halo_size

OPTIONS = ["--hidden", "64", "--dropout", "0", "--weight-decay", "0", "--no-normalize-features", "--threads", "1"]
OVERLAP = str(Path(__file__).parent / "programs" / "overlap.py")
PER_PART = 3_000  # nodes, in weak scaling


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    print(f"{'edges':>12} {'s/epoch':>8} {'us per 1000 edges':>18} {'hidden':>7}", flush=True)
    has_compared = False
    for millions in chosen.millions:
        graph = make_graph(chosen.folder, nodes=millions * 22_200, features=64)
        data = ["--dataset", str(graph), "--partition-dir", str(chosen.folder / "parts")]
        seconds = _seconds(2, data)
        edges = millions * 1_000_000
        print(f"{edges:12,} {seconds:8.3f} {seconds / edges * 1e9:18.1f} {_hidden(data):7.0%}", flush=True)
        if seconds > 0.1 and not has_compared:
            has_compared = True
            alone = _seconds(1, data)
            print(f"{'':12} 1 rank {alone:.3f} s: 2 ranks are {alone / seconds:.2f} times as fast", flush=True)
    print(f"{'parts':>6} {'halo rows of a part':>20} {'of its nodes':>13}", flush=True)
    for parts in chosen.parts:
        source = make_graph(chosen.folder, nodes=parts * PER_PART, features=4)
        whole = open_dataset(str(source), None, None, 0, normalize_features=False).load()
        halo = halo_size(whole, assign(whole, parts, "nodes").owner, parts) / parts
        print(f"{parts:6} {halo:20,.0f} {halo / PER_PART:13.2f}", flush=True)
    return 0


def _seconds(ranks: int, data: list[str]) -> float:
    return float(train(ranks, *data, *OPTIONS, "--epochs", "7", "--eval-every", "7")["seconds_per_epoch"])


def _hidden(data: list[str]) -> float:
    """Return the share of an exchange's time that multiplying hides, as rank 0 saw it."""
    with tempfile.TemporaryDirectory() as folder:
        options = [*data, *OPTIONS, "--epochs", "1", "--output-dir", folder]
        execute([*LINE, "2", *UNILAUNCH, "run", *options], 900)
        spec: dict[str, Any] = json.loads(Path(folder, "spec.json").read_text(encoding="utf-8"))
    partition = next(Path(spec["options"]["partition_dir"]).glob(f"{Path(spec['options']['dataset']).stem}-2-*"))
    said = execute([*LINE, "2", *UNILAUNCH, "run", OVERLAP, "--", str(partition), spec["options"]["dataset"]], 300)
    return float(said.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
