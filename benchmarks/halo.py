"""What the exchanges that are not exact cost and give: bytes per epoch, loss gap, accuracy, on 4 ranks of Cora.

    python benchmarks/halo.py [--seeds 5] [--ranks 4]

The GCN paper's set-up, 200 epochs. The gap is the mean difference of the last ten losses to the exact run's with the
same seed; accuracies are means over the seeds, with their deviation.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from mpirun import SHARED, train

MODES = ("exact", "stale", "int8", "sample:0.5", "sample:0.1")


def main() -> int:
    """Train with each exchange and seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "planetoid").symlink_to(SHARED.absolute() / "planetoid")
        data = ["--dataset", "cora", "--data-dir", folder, "--eval-every", "200", "--threads", "1"]
        runs: dict[tuple[str, int], dict[str, Any]] = {
            (mode, seed): train(chosen.ranks, *data, "--halo", mode, "--seed", str(seed))
            for mode in MODES
            for seed in range(chosen.seeds)
        }  # fmt: skip
        for seed in range(chosen.seeds):
            runs["bfloat16", seed] = train(chosen.ranks, *data, "--precision", "bfloat16", "--seed", str(seed))
    print(f"{'halo':12} {'bytes/epoch':>12} {'of exact':>9} {'loss gap':>9} {'accuracy':>9} {'std':>6}", flush=True)
    exact = runs["exact", 0]["bytes_per_epoch"]
    for mode in (*MODES, "bfloat16"):
        own = [runs[mode, seed] for seed in range(chosen.seeds)]
        sent = statistics.mean(run["bytes_per_epoch"] for run in own)
        gaps = [_late(run) - _late(runs["exact", seed]) for seed, run in enumerate(own)]
        reached = [run["test_accuracy"] for run in own]
        print(
            f"{mode:12} {sent:12,.0f} {sent / exact:9.1%} {statistics.mean(gaps):9.4f} {statistics.mean(reached):9.2%} "
            f"{statistics.stdev(reached):6.2%}", flush=True,
        )  # fmt: skip
    return 0


def _late(run: dict[str, Any]) -> float:
    return float(statistics.mean(run["loss"][-10:]))


if __name__ == "__main__":
    sys.exit(main())
