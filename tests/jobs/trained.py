"""Trainings of many cases under one start of mpirun."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.mpirun import Launcher

PROGRAM = str(Path(__file__).parent / "programs" / "train_cases.py")


@dataclass(frozen=True)
class Trained:
    """What one case has left.

    Attributes:
        result: As in `result.json`.
        logits: Of all nodes, in the order of their global ids.
        weights: By rank, the weights of every layer.
    """

    result: dict[str, Any]
    logits: NDArray[np.float64]
    weights: list[list[NDArray[np.float64]]]


def train_cases(
    launcher: Launcher, backend: str, ranks: int, cases: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, Trained]:
    """Train the cases, each with its own options, on *ranks* ranks; paths are relative to *folder*."""
    (folder / "cases.json").write_text(json.dumps(cases))
    line = [PROGRAM, "cases.json", "run", "--backend", backend, "--data-dir", "data"]
    launcher.run(ranks, line, folder).check()
    return {name: _read(folder / name, ranks) for name in cases}


def _read(folder: Path, ranks: int) -> Trained:
    dumps = [dict(np.load(folder / f"rank.{rank}.npz")) for rank in range(ranks)]
    order = np.argsort(np.concatenate([dump["owned"] for dump in dumps]))
    logits = np.concatenate([dump["logits"] for dump in dumps])[order]
    weights = [[dump[name] for name in sorted(dump) if name.startswith("weight_")] for dump in dumps]
    return Trained(json.loads((folder / "result.json").read_text()), logits, weights)
