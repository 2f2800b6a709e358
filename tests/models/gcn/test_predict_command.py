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


def test_relative_paths_are_those_of_the_run(tmp_path: Path) -> None:
    """Unless there is nothing: the run's folder may have moved. A data set's name stays a name."""
    for name in ("data", "checkpoints", "cora"):
        (tmp_path / name).mkdir()
    (tmp_path / "own.npz").touch()
    for dataset, expected in (("own.npz", f"{tmp_path}/own.npz"), ("gone.npz", "gone.npz"), ("cora", "cora")):
        folders = {"data_dir": "data", "checkpoint_dir": "checkpoints", "partition_dir": "/elsewhere"}
        spec = GcnSpec.model_validate({"dataset": dataset, **folders})
        told = {"seed": 0, "options": spec.to_json(), "started_in": str(tmp_path)}
        (tmp_path / "spec.json").write_text(json.dumps(told))
        trained, _ = _trained(PredictSpec(folder=tmp_path))
        assert (trained.dataset, str(trained.data_dir)) == (expected, f"{tmp_path}/data")
        assert (str(trained.checkpoint_dir), str(trained.partition_dir)) == (f"{tmp_path}/checkpoints", "/elsewhere")
