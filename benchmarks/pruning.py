"""Seconds per epoch of this checkout beside another one's, where few nodes are in training.

    python benchmarks/pruning.py --other CHECKOUT [--rounds 3] [--share 0.08] [--nodes 100000] [--folder DIR]

CHECKOUT is an older one with an environment of its own, CHECKOUT/.venv, into which it was installed (pip install -e).
The graph is that of epoch.py, with SHARE of its nodes
in training, each with the same chance. With 45 edges a node nearly every node then has a training node as its
neighbour, so the last layer alone leaves out rows. Two ranks, 300-128-128-40, without L2; the checkouts in turn,
and of each its quickest epoch: what else the machine does then disturbs least.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from epoch import OPTIONS
from graphs import make_graph
from mpirun import train_in, verdict

#: The most that an epoch may take of the other checkout's.
BOUND, EPOCHS = 0.5, "8"


def main() -> int:
    """Measure, print the table, and return 0 if the bound is kept with each dropout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.08)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    graph = few_trained(make_graph(chosen.folder, chosen.nodes), chosen.share)
    checkouts, kept = {"this": None, "other": chosen.other}, True
    data = ["--dataset", str(graph), "--partition-dir", str(chosen.folder / "parts"), "--no-normalize-features"]
    for dropout in ("0", "0.5"):
        options = [*data, *OPTIONS, "--dropout", dropout, "--epochs", EPOCHS, "--eval-every", EPOCHS]
        runs = [
            {which: train_in(checkout, options) for which, checkout in checkouts.items()} for _ in range(chosen.rounds)
        ]
        least = {which: min(run[which]["least"] for run in runs) for which in checkouts}
        for which in checkouts:
            megabytes = runs[0][which]["bytes_per_epoch"] / 1e6
            print(f"dropout {dropout:3} {which:5} {least[which]:6.3f} s/epoch {megabytes:7.1f} MB/epoch", flush=True)
        apart = max(abs(a - b) for a, b in zip(*(runs[0][which]["loss"] for which in checkouts), strict=True))
        assert apart < 1e-4, f"the losses are {apart} apart"
        kept &= verdict(f"dropout {dropout}: this / other", least["this"] / least["other"], BOUND)
    return 0 if kept else 1


def few_trained(graph: Path, share: float) -> Path:
    """Write the graph with other training nodes, once, and return its path."""
    path = graph.with_name(f"{graph.stem}-{share:g}.npz")
    if not path.exists():
        arrays = dict(np.load(graph))
        trains = np.random.default_rng(2).random(len(arrays["y"])) < share
        arrays["train_mask"] = trains
        arrays["val_mask"], arrays["test_mask"] = (mask & ~trains for mask in (arrays["val_mask"], arrays["test_mask"]))
        np.savez(path, **arrays)
    return path


if __name__ == "__main__":
    sys.exit(main())
