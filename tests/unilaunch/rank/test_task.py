"""What a rank is told: options over environment over file."""

import json
from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import PluginError, SpecError
from unilaunch.rank.task import Task, read_task
from unilaunch_gcn.spec import GcnSpec


def _options(task: Task) -> GcnSpec:
    assert isinstance(task.options, GcnSpec)
    return task.options


def test_option_wins_over_environment_over_file(tmp_path: Path) -> None:
    """Each field for itself."""
    (tmp_path / "run.toml").write_text('seed = 1\nlr = 0.5\nepochs = 1\nbackend = "torch"\n')
    environ = {"UNILAUNCH_LR": "0.25", "UNILAUNCH_EPOCHS": "2"}
    task = read_task({"config": str(tmp_path / "run.toml"), "epochs": "3"}, environ, 1)
    assert (task.spec.seed, _options(task).lr, _options(task).epochs) == (1, 0.25, 3)


def test_written_spec_can_be_given_back(tmp_path: Path) -> None:
    """`spec.json` repeats the run."""
    task = read_task({"epochs": "7", "seed": "5", "backend": "torch"}, {}, 1)
    written = task.spec.model_dump(mode="json") | {"options": task.options.model_dump(mode="json")}
    (tmp_path / "spec.json").write_text(json.dumps(written))
    again = read_task({"config": str(tmp_path / "spec.json")}, {}, 1)
    assert (again.spec, again.options) == (task.spec, task.options)


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        ({"epochs": "0"}, {}, "--epochs"),
        ({}, {"UNILAUNCH_EPOCHS": "0"}, "UNILAUNCH_EPOCHS"),
        ({"target": "resnet"}, {}, "no model 'resnet'"),
        ({"num_parts": "3"}, {}, "--num-parts 3"),
        ({"colour": "red"}, {}, "--colour: no such option"),
    ],
)
def test_faults_name_their_source(given: dict[str, Any], environ: dict[str, str], words: str) -> None:
    """The option or the variable, as the user wrote it."""
    with pytest.raises(SpecError, match=words):
        read_task(given, environ, 2)


def test_file_faults_name_the_file(tmp_path: Path) -> None:
    """And the field in it."""
    (tmp_path / "run.yaml").write_text("options: {epochs: none}\n")
    with pytest.raises(SpecError, match=r"run\.yaml: epochs: must be a valid integer"):
        read_task({"config": str(tmp_path / "run.yaml")}, {}, 1)


def test_unknown_backend_names_the_installed() -> None:
    """So that the next try is right."""
    with pytest.raises(PluginError, match="no backend 'jax'; installed: mindspore, torch"):
        read_task({"backend": "jax"}, {}, 1)
