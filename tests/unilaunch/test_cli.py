"""The command line: one line and exit code 2 for what is not allowed, before anything is done."""

import subprocess
import sys
from pathlib import Path

import pytest

from unilaunch import __version__
from unilaunch.errors import SpecError
from unilaunch.options import parse


def _unilaunch(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unilaunch", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["train"], "'train'"),
        (["run", "--epoch", "3"], "--epoch: no such option; did you mean --epochs?"),
        (["run", "--epoch=3"], "did you mean --epochs?"),
        (["run", "-z"], "-z: no such option"),
        (["run", "--epochs"], "--epochs: expected one argument"),
        (["run", "gcn", "mnist"], "'mnist': there is one TARGET"),
        (["partition", "--epochs", "3"], "--epochs: no such option"),
    ],
    ids=["none", "command", "nearest", "with =", "unlike any", "no value", "two targets", "another command's"],
)
def test_what_is_no_option_is_refused(arguments: list[str], words: str) -> None:
    """The word is quoted, and the nearest option named."""
    with pytest.raises(SpecError) as refusal:
        parse(arguments)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("command", "example"), [
    ("run", "mpirun -n 2 python -m unilaunch run mnist --epochs 10"),
    ("launch", "unilaunch launch -n 2 --dataset cora"),
    ("partition", "unilaunch partition --dataset cora --num-parts 4"),
])  # fmt: skip
def test_models_and_commands_bring_their_examples(
    command: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The core knows none of them."""
    with pytest.raises(SystemExit):
        parse([command, "--help"])
    assert f"  {example}\n" in capsys.readouterr().out


def test_only_given_options_are_there() -> None:
    """Defaults come later: a file and the environment go between. Values stay text, for the spec to judge."""
    assert parse(["run"]) == {"command": "run"}
    given = {"command": "run", "target": "gcn", "epochs": "many", "normalize_features": False, "config": "run.toml"}
    assert parse(["run", "gcn", "--epochs", "many", "--no-normalize-features", "--config", "run.toml"]) == given
    assert parse(["partition", "--num-parts", "4"]) == {"command": "partition", "num_parts": "4"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--epochs", "0", "--seed", "x"],
        ["run", "--config", "none.toml"],
        ["run", "--dataset", "no-such-data"],
        ["run", "--num-parts", "2"],
        ["run", "--backend", "jax"],
        ["partition", "--num-parts", "0"],
        ["partition"],
    ],
    ids=["two values", "no file", "data set", "parts", "backend", "value", "no parts"],
)
def test_a_refusal_is_one_line_and_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    """Nothing on standard output, no traceback."""
    done = _unilaunch(arguments, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("unilaunch: ")


def test_version_is_the_packages(tmp_path: Path) -> None:
    """On standard output."""
    done = _unilaunch(["--version"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"unilaunch {__version__}\n", "")


def test_help_shows_every_option_with_its_default(tmp_path: Path) -> None:
    """The core's and the model's, and what may be chosen."""
    done = _unilaunch(["run", "--help"], tmp_path)
    assert done.returncode == 0
    for words in ("--backend", "--epochs", "gcn 200, mnist 1", "{auto,cpu,cuda,npu}", "--no-normalize-features"):
        assert words in done.stdout
