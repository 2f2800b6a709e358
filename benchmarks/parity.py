"""How far the loss curves of Cora lie apart: parts against parts, framework against framework, over 200 epochs.

    python benchmarks/parity.py [--seeds 5]

Bounds: 1e-10 in float64, 1e-5 in float32, both against torch on one part. Reads ../shared/datasets/planetoid.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from runs import SHARED, train, verdict

BOUNDS = {"float64": 1e-10, "float32": 1e-5}


def main() -> int:
    """Train for every seed, print the table, and return 0 if the bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    kept = True
    print(f"{'precision':10} {'backend':10} {'parts':>5} {'greatest difference of a loss':>30}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "planetoid").symlink_to(SHARED / "planetoid")
        for precision, bound in BOUNDS.items():
            worst = 0.0
            first = [_losses("torch", 1, precision, seed, folder) for seed in range(seeds)]
            for backend, parts in [(b, p) for b in ("torch", "mindspore") for p in (1, 2, 3, 4)][1:]:
                curves = [_losses(backend, parts, precision, seed, folder) for seed in range(seeds)]
                apart = max(
                    abs(a - b) for one, two in zip(first, curves, strict=True) for a, b in zip(one, two, strict=True)
                )
                print(f"{precision:10} {backend:10} {parts:5} {apart:30.1e}")
                worst = max(worst, apart)
            kept &= verdict(precision, worst, bound)
    return 0 if kept else 1


def _losses(backend: str, parts: int, precision: str, seed: int, folder: str) -> list[float]:
    options = ["--dataset", "cora", "--data-dir", folder, "--backend", backend, "--precision", precision]
    losses: list[float] = train(parts, *options, "--seed", str(seed), "--eval-every", "200")["loss"]
    return losses


if __name__ == "__main__":
    sys.exit(main())
