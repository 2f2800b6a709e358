"""Mean test accuracy over seeds, on 2 ranks: Cora with the GCN paper's set-up, and two graphs of a user's own.

Cora also with --precision bfloat16, whose mean must not differ by more than 0.3 points.

    python benchmarks/accuracy.py [--seeds 10] [--dataset cora] [--backend torch] [--data-dir DIR]

Cora: the public split and the defaults (2 layers, 16 hidden, dropout 0.5, lr 0.01, L2 5e-4, 200 epochs); the bound is
81.0 %. Amazon Photo and Coauthor CS: 20 training nodes of each class, drawn anew with each seed; stated, not bounded.

cora_gat: the attention network with its paper's set-up: 8 heads of 8, dropout 0.6 of rows and of attention, lr 0.005,
L2 5e-4 of all weights, the epoch with the lowest validation loss, and the end after 100 epochs without a lower one. The
paper reports 83.0 +- 0.7 %: the bound is 82.3 %. cora_sage: the GCN's set-up with GraphSAGE's layers; stated.

DIR holds planetoid/ and graphs/, as ../shared/datasets does; nothing is written there.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from mpirun import SHARED, train, verdict

#: Photo's and CS's were chosen by validation accuracy on the seeds 100 to 102, which are not among the measured ones.
OPTIONS: dict[str, list[str]] = {
    "cora": [],
    "cora_sage": ["--conv", "sage"],
    "cora_gat": [
        "--conv",
        "gat",
        "--hidden",
        "8",
        "--bias",
        "--dropout",
        "0.6",
        "--lr",
        "0.005",
        "--epochs",
        "2000",
        "--eval-every",
        "1",
        "--patience",
        "100",
    ],
    "amazon_photo": ["--hidden", "64", "--no-normalize-features", "--weight-decay", "0"],
    "coauthor_cs": ["--hidden", "64", "--normalize-features"],
}
BOUNDS = {"cora": 0.81, "cora_gat": 0.823}
BFLOAT16_BOUND = 0.003


def main() -> int:
    """Train for every seed, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--dataset", choices=list(OPTIONS), action="append")
    parser.add_argument("--backend", choices=["torch", "mindspore"], action="append")
    parser.add_argument("--data-dir", type=Path, default=SHARED)
    chosen = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "planetoid").symlink_to(chosen.data_dir.absolute() / "planetoid")
        print(f"{'graph':14} {'backend':10} {'mean':>7} {'std':>6} {'least':>7}", flush=True)
        for dataset in chosen.dataset or OPTIONS:
            source = _source(dataset, chosen.data_dir)
            options = [*source, "--data-dir", folder, "--partition-dir", f"{folder}/parts", *OPTIONS[dataset]]
            for backend in chosen.backend or ["torch", "mindspore"]:
                mean = _row(dataset, backend, chosen.seeds, options)
                if dataset in BOUNDS:
                    kept &= verdict(f"{dataset}, {backend}", mean, BOUNDS[dataset], at_most=False)
                if (dataset, backend) == ("cora", "torch"):
                    rounded = _row("in bfloat16", backend, chosen.seeds, [*options, "--precision", "bfloat16"])
                    kept &= verdict("bfloat16, difference", abs(rounded - mean), BFLOAT16_BOUND)
    return 0 if kept else 1


def _source(dataset: str, data_dir: Path) -> list[str]:
    return ["--dataset", "cora" if dataset.startswith("cora") else str(data_dir / "graphs" / f"{dataset}.npz")]


def _row(name: str, backend: str, seeds: int, options: list[str]) -> float:
    """Print the accuracy over seeds; return its mean."""
    reached = [_accuracy(seed, backend, *options) for seed in range(seeds)]
    mean, std = statistics.mean(reached), statistics.stdev(reached) if len(reached) > 1 else 0.0
    print(f"{name:14} {backend:10} {mean:7.2%} {std:6.2%} {min(reached):7.2%}", flush=True)
    return mean


def _accuracy(seed: int, backend: str, *options: str) -> float:
    seeds = ["--seed", str(seed), *([] if "cora" in options else ["--split-seed", str(seed)])]
    every = [] if "--eval-every" in options else ["--eval-every", "200"]
    result = train(2, *options, *seeds, *every, "--backend", backend)
    return float(min(result["evaluations"], key=lambda evaluation: evaluation["val_loss"])["test_accuracy"])


if __name__ == "__main__":
    sys.exit(main())
