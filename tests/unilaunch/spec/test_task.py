"""The task of a rank: options over environment over file."""

import json
from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import PluginError, SpecError
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec
from unilaunch.spec.task import Task
from unilaunch_gcn.spec import GcnSpec
from unilaunch_mnist.spec import MnistSpec


def _options(task: Task[RunSpec]) -> GcnSpec:
    assert isinstance(task.options, GcnSpec)
    return task.options


def test_option_wins_over_environment_over_file(tmp_path: Path) -> None:
    """Each field for itself."""
    (tmp_path / "run.toml").write_text('seed = 1\nlr = 0.5\nepochs = 1\nbackend = "torch"\n')
    environ = {"UNILAUNCH_LR": "0.25", "UNILAUNCH_EPOCHS": "2"}
    task = read_task(RunSpec, {"config": str(tmp_path / "run.toml"), "epochs": "3"}, environ)
    assert (task.spec.seed, _options(task).lr, _options(task).epochs) == (1, 0.25, 3)
    assert read_task(RunSpec, {}, {"UNILAUNCH_TARGET": "mnist"}).target.name == "mnist"
    assert read_task(RunSpec, {}, {}).spec.backend == "torch"  # so the written spec repeats the run


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


@pytest.mark.parametrize(("file", "given", "environ", "words"), [
    ("", {"seed": "x", "epochs": "0"}, {"UNILAUNCH_LR": "-1"}, ["--seed: ", "--epochs: ", "UNILAUNCH_LR: must"]),
    ("", {"target": "resnet"}, {}, ["no model 'resnet'"]), ("", {"num_parts": "3"}, {}, ["--num-parts 3"]),
    ("", {"colour": "red"}, {}, ["--colour: no such option"]),
    ("", {"backend": "jax"}, {}, ["no backend 'jax'; installed: mindspore, torch"]),
    ('options = {epochs = "none"}\n', {}, {}, ["run.toml: epochs: must be a whole number"]),
    ("options = 3\n", {}, {}, ["run.toml: options: expected"]),
], ids=lambda value: str(value[0]) if isinstance(value, list) else "")  # fmt: skip
def test_faults_name_their_source(
    file: str, given: dict[str, Any], environ: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    """The option, the variable or the file, as the user wrote it; all faults in one line."""
    (tmp_path / "run.toml").write_text(file)
    with pytest.raises((SpecError, PluginError)) as refusal:
        read_task(RunSpec, {"config": str(tmp_path / "run.toml"), **given}, environ).check(2)
    assert [word for word in words if word not in str(refusal.value)] == []
    assert "\n" not in str(refusal.value)


def test_another_models_variable_is_left_alone(tmp_path: Path) -> None:
    """A shell may hold both models' variables; on the command line and in a file it is a slip."""
    environ = {"UNILAUNCH_BATCH_SIZE": "64", "UNILAUNCH_HIDDEN": "7"}
    assert _options(read_task(RunSpec, {}, environ)).hidden == 7
    assert read_task(RunSpec, {"target": "mnist"}, environ).options == MnistSpec(batch_size=64)
    with pytest.raises(SpecError, match="--batch-size: no such option"):
        read_task(RunSpec, {"batch_size": "64"}, {})
    (tmp_path / "run.toml").write_text("batch_size = 64\n")
    with pytest.raises(SpecError, match=r"run\.toml: batch_size: no such option"):
        read_task(RunSpec, {"config": str(tmp_path / "run.toml")}, {})
