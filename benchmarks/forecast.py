"""What `unilaunch plan` predicts of an epoch, beside what a run then takes; on as many ranks as there are processors.

    python benchmarks/forecast.py [--rounds 3] [--folder DIR]

Plan and run in turn, round after round, for both frameworks; medians. Bound: within 25 %.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from graphs import make_graph
from mpirun import SHARED, UNILAUNCH, execute, train, verdict

PARTS = (1, 2)


def main() -> int:
    """Predict, measure, print the table, and return 0 if all predictions are close enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    cases = {
        "communities": [str(make_graph(chosen.folder)), "--layers", "3", "--hidden", "128", "--dropout", "0"],
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
            for _ in range(chosen.rounds):
                for parts, seconds in _plan(options).items():
                    predicted[parts].append(seconds)
                for parts in PARTS:
                    measured[parts].append(_run(parts, options, chosen.folder))
            for parts in PARTS:
                told, taken = statistics.median(predicted[parts]), statistics.median(measured[parts])
                print(f"{name:14} {backend:10} {parts:5}  {told:9.4f}  {taken:8.4f}", flush=True)
                kept &= verdict("|predicted / measured - 1|", abs(told / taken - 1), 0.25)
    return 0 if kept else 1


def _plan(options: list[str]) -> dict[int, float]:
    line = [*UNILAUNCH, "plan", "--json", "--num-parts", ",".join(map(str, PARTS)), *options]
    rows = map(json.loads, execute(line, 600).splitlines())
    return {row["num_parts"]: row["graph_seconds"] for row in rows}


def _run(parts: int, options: list[str], folder: Path) -> float:
    kept = ["--partition-dir", str(folder / "parts"), "--epochs", "12", "--eval-every", "12"]
    return float(train(parts, *options, *kept)["seconds_per_epoch"])


if __name__ == "__main__":
    sys.exit(main())
