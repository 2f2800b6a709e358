"""The options with which `unilaunch predict` prepares a graph."""

import json
from pathlib import Path
from typing import Any

import pytest

from unilaunch_gcn.predict_command import PredictSpec, _trained
from unilaunch_gcn.spec import GcnSpec


@pytest.mark.parametrize(
    ("run", "other", "expected"),
    [
        ({"dataset": "cora"}, "own.npz", True),
        ({"dataset": "own.npz"}, "cora", False),
        ({"dataset": "own.npz", "normalize_features": True}, "cora", True),
        ({"dataset": "cora"}, None, None),
    ],
)
def test_another_graph_has_its_features_scaled_as_in_training(
    run: dict[str, Any], other: str | None, expected: object, tmp_path: Path
) -> None:
    """None leaves it to the name of the data set, which is then the run's."""
    (tmp_path / "spec.json").write_text(json.dumps({"seed": 3, "options": GcnSpec(**run).to_json(), "started_in": ""}))
    trained, seed = _trained(PredictSpec(folder=tmp_path, dataset=other))
    assert (trained.normalize_features, trained.dataset, seed) == (expected, other or run["dataset"], 3)
