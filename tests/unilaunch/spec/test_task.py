"""The task of a rank: options over environment over file."""

import json
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from unilaunch.errors import PluginError, SpecError
from unilaunch.interfaces import plugins
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec, Spec
from unilaunch.spec.task import Task
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.spec import GcnSpec


def _options(task: Task[RunSpec]) -> GcnSpec:
    assert isinstance(task.options, GcnSpec)
    return task.options


def test_option_wins_over_environment_over_file(tmp_path: Path) -> None:
    """Each field for itself."""
    (tmp_path / "run.toml").write_text('seed = 1\nlr = 0.5\nepochs = 1\nbackend = "torch"\n')
    environ = {"UNILAUNCH_LR": "0.25", "UNILAUNCH_EPOCHS": "2"}
    task = read_task(RunSpec, {"config": str(tmp_path / "run.toml"), "epochs": "3"}, environ)
    assert (task.spec.seed, _options(task).lr, _options(task).epochs) == (1, 0.25, 3)


def test_hosts_on_the_line_win_over_a_hostfile_of_the_environment() -> None:
    """Both are one option, in two forms: the user has typed one of them."""
    task = read_task(LaunchSpec, {"hosts": "a:2", "backend": "torch"}, {"UNILAUNCH_HOSTFILE": "hosts"})
    assert (task.spec.hosts, task.spec.hostfile) == ("a:2", None)


def test_written_spec_can_be_given_back(tmp_path: Path) -> None:
    """`spec.json` repeats the run."""
    task = read_task(RunSpec, {"epochs": "7", "seed": "5", "backend": "torch"}, {})
    assert task.options
    written = task.spec.model_dump(mode="json") | {"options": task.options.model_dump(mode="json")}
    (tmp_path / "spec.json").write_text(json.dumps(written))
    again = read_task(RunSpec, {"config": str(tmp_path / "spec.json")}, {})
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
        read_task(RunSpec, given, environ).check(2)


def test_file_faults_name_the_file(tmp_path: Path) -> None:
    """And the field in it."""
    (tmp_path / "run.yaml").write_text("options: {epochs: none}\n")
    with pytest.raises(SpecError, match=r"run\.yaml: epochs: must be a whole number"):
        read_task(RunSpec, {"config": str(tmp_path / "run.yaml")}, {})


def test_unknown_backend_names_the_installed() -> None:
    """So that the next try is right."""
    with pytest.raises(PluginError, match="no backend 'jax'; installed: mindspore, torch"):
        read_task(RunSpec, {"backend": "jax"}, {})


class _MnistSpec(Spec):
    batch: int = 32


class _Mnist(GcnModel):
    """Another model, as a third party would install it."""

    name = "mnist"
    spec = _MnistSpec  # type: ignore[assignment]

    @override
    def check(self, options: Any, world_size: int) -> None:
        """Fit any world size."""


@pytest.fixture
def _two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "models", lambda: {"gcn": GcnModel(), "mnist": _Mnist()})


@pytest.mark.usefixtures("_two_models")
def test_another_models_variable_is_left_alone(tmp_path: Path) -> None:
    """A shell may hold both models' variables; on the command line and in a file it is a slip."""
    environ = {"UNILAUNCH_BATCH": "64", "UNILAUNCH_EPOCHS": "3"}
    assert _options(read_task(RunSpec, {}, environ)).epochs == 3
    mnist = read_task(RunSpec, {"target": "mnist"}, environ)
    assert mnist.options == _MnistSpec(batch=64)
    with pytest.raises(SpecError, match="--batch: no such option"):
        read_task(RunSpec, {"batch": "64"}, {})
    (tmp_path / "run.toml").write_text("batch = 64\n")
    with pytest.raises(SpecError, match=r"run\.toml: batch: no such option"):
        read_task(RunSpec, {"config": str(tmp_path / "run.toml")}, {})


@pytest.mark.usefixtures("_two_models")
@pytest.mark.parametrize("where", ["file", "variable", "argument"])
def test_target_is_chosen_like_any_field(where: str, tmp_path: Path) -> None:
    """By the file, the environment or the command line."""
    (tmp_path / "run.json").write_text('{"target": "mnist"}' if where == "file" else "{}")
    given = {"config": str(tmp_path / "run.json")} | ({"target": "mnist"} if where == "argument" else {})
    environ = {"UNILAUNCH_TARGET": "mnist"} if where == "variable" else {}
    assert read_task(RunSpec, given, environ).target.name == "mnist"


def test_the_faults_of_launcher_and_model_are_one_line() -> None:
    """Nobody has to put one right to hear of the next."""
    with pytest.raises(SpecError) as refusal:
        read_task(RunSpec, {"seed": "x", "epochs": "0"}, {"UNILAUNCH_LR": "-1"})
    assert "\n" not in str(refusal.value)
    for words in ("--seed: must be a whole number", "--epochs: must be greater", "UNILAUNCH_LR: must be greater"):
        assert words in str(refusal.value)


def test_options_that_are_no_table_are_refused_with_the_file(tmp_path: Path) -> None:
    """The file is named, as for every other fault in it."""
    (tmp_path / "run.toml").write_text("options = 3\n")
    with pytest.raises(SpecError, match=r"run\.toml: options: expected"):
        read_task(RunSpec, {"config": str(tmp_path / "run.toml")}, {})


def test_auto_becomes_the_backend_that_was_taken() -> None:
    """So that the written spec repeats the run where both frameworks are installed."""
    assert read_task(RunSpec, {}, {}).spec.backend == "torch"
