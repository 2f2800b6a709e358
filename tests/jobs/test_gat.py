"""`run --conv gat`: the same losses, scores and weights on both frameworks and on one to three parts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.mpirun import Launcher
from jobs.trained import train_cases

pytestmark = [pytest.mark.xdist_group("gat"), pytest.mark.mindspore]

COMMON = ["--conv", "gat", "--hidden", "4", "--precision", "float64", "--dropout", "0.6", "--lr", "0.005"]


def test_the_same_training_everywhere(openmpi5: Launcher, cora: Path, tmp_path: Path) -> None:
    """Cora, and a directed graph with weights, loops and isolated nodes, with dropout, in float64: to 1e-10."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "edge_index": draw.integers(0, 110, (2, 500)),
        "edge_weight": draw.random(500, np.float32),
    }
    arrays |= {"x": draw.random((120, 9), np.float32), "y": np.arange(120) % 3}
    np.savez(tmp_path / "graph.npz", **arrays)
    data = ["--data-dir", str(cora)]
    cases = {
        "cora": [*COMMON, *data, "--dataset", "cora", "--epochs", "4"],
        "directed": [
            *COMMON,
            *data,
            "--dataset",
            str(tmp_path / "graph.npz"),
            "--epochs",
            "12",
            "--bias",
            "--layers",
            "3",
        ],
    }
    runs = []
    for backend, ranks in (("torch", 1), ("torch", 3), ("mindspore", 2)):
        (folder := tmp_path / f"{backend}-{ranks}").mkdir()
        runs.append(train_cases(openmpi5, backend, ranks, cases, folder))
    expected, *others = runs
    for name in cases:
        assert expected[name].result["loss"][-1] < expected[name].result["loss"][0]
        for other in others:
            np.testing.assert_allclose(other[name].result["loss"], expected[name].result["loss"], rtol=0, atol=1e-10)
            np.testing.assert_allclose(other[name].logits, expected[name].logits, rtol=0, atol=1e-10)
            for mine, theirs in zip(other[name].weights[0], expected[name].weights[0], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10)
