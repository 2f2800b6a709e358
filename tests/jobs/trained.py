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
    result: dict[str, Any]
    logits: NDArray[np.float64]  # of all nodes, in the order of their global ids
    weights: list[list[NDArray[np.float64]]]  # by rank, of every layer


def train_cases(
    launcher: Launcher, backend: str, ranks: int, cases: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, Trained]:
    (folder / "cases.json").write_text(json.dumps(cases))
    line = [PROGRAM, "cases.json", "run", "--backend", backend, "--data-dir", "data"]
    launcher.run(ranks, line, folder).check()
    trained = {}
    for name in cases:
        dumps = [dict(np.load(folder / name / f"rank.{rank}.npz")) for rank in range(ranks)]
        order = np.argsort(np.concatenate([dump["owned"] for dump in dumps]))
        logits = np.concatenate([dump["logits"] for dump in dumps])[order]
        weights = [[dump[key] for key in sorted(dump) if key.startswith("weight_")] for dump in dumps]
        trained[name] = Trained(json.loads((folder / name / "result.json").read_text()), logits, weights)
    return trained
