"""How far the loss curves of Cora lie apart: 1, 2, 3 and 4 parts, torch and MindSpore, over 200 epochs.

    python benchmarks/parity.py [--seeds 5]

The table compares each with torch on one part; the bounds (1e-10 in float64, 1e-5 in float32) are on the two curves of
the same seed that lie furthest apart, whichever they are. Reads ../shared/datasets/planetoid.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from mpirun import SHARED, train, verdict

BOUNDS = {"float64": 1e-10, "float32": 1e-5}
RUNS = [(backend, parts) for backend in ("torch", "mindspore") for parts in (1, 2, 3, 4)]
EPOCHS = 200


def main() -> int:
    """Train for every seed, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
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
    return 0 if kept else 1


def _losses(parts: int, folder: str, *options: str) -> list[float]:
    data = ["--dataset", "cora", "--data-dir", folder, "--partition-dir", f"{folder}/parts"]
    losses: list[float] = train(parts, *data, *options, "--epochs", str(EPOCHS), "--eval-every", str(EPOCHS))["loss"]
    return losses


if __name__ == "__main__":
    sys.exit(main())
