"""The command line: one line and exit code 2 for what is not allowed, before anything is done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unilaunch import __version__
from unilaunch.errors import SpecError
from unilaunch.spec.options import parse


def _unilaunch(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unilaunch", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "train: no such command; type unilaunch launch"),
        (["run", "--epoch", "3"], "--epoch: no such option; did you mean --epochs?"),
        (["run", "--epoch=3"], "did you mean --epochs?"),
        (["run", "-z"], "-z: no such option"),
        (["run", "--epochs"], "--epochs: expected one argument"),
        (["run", "gcn", "mnist"], "'mnist': there is one TARGET"),
        (["partition", "--epochs", "3"], "--epochs: no such option"),
    ],
    ids=["command", "nearest", "with =", "unlike any", "no value", "two targets", "another command's"],
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


@pytest.mark.parametrize("arguments", [["launch", "-n", "2", "train.py"], ["run", "train.py"]])
def test_a_current_folder_that_is_gone_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    """It was removed, or its file system is no longer mounted."""
    gone, lines = tmp_path / "gone", 'rmdir "$PWD"; exec "$@"'
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", lines, "sh", Path(sys.executable).with_name("unilaunch"), *arguments],
        cwd=gone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "unilaunch: the current folder no longer exists: cd to another one\n"


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


def test_the_exit_code_stays_where_nobody_reads_the_errors(tmp_path: Path) -> None:
    """As in `2>&1 | head -1`: Python itself would exit with 120."""
    reading, writing = os.pipe()
    os.close(reading)
    line = [sys.executable, "-m", "unilaunch", "launch", "--no-such-option"]
    done = subprocess.run(line, cwd=tmp_path, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 2


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-"])
def test_outputs_that_are_closed(closed: str, tmp_path: Path) -> None:
    """As daemons start programs; the output is in the rank's files."""
    (tmp_path / "script.py").write_text("print('said')\n")
    line = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "unilaunch", "run", "script.py"]
    assert subprocess.run(line, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "log_output" / "rank.0" / "stdout").read_text() == "said\n"


def test_explain_refuses_what_run_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same line."""
    monkeypatch.setenv("UNILAUNCH_DEVICE", "tpu")
    done, run = _unilaunch(["explain"], tmp_path), _unilaunch(["run"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", run.stderr)


def test_the_doctor_checks_the_hosts_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that `launch` would use: it said that this host is ready, and looked at no other."""
    monkeypatch.setenv("UNILAUNCH_HOSTFILE", "none")
    done = _unilaunch(["doctor", "--allow-run-as-root"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "UNILAUNCH_HOSTFILE" in done.stderr or "none: no such file" in done.stderr
    typed = _unilaunch(["doctor", "-H", "a:0"], tmp_path)  # hosts on the line win, as with launch
    assert typed.stderr.startswith("unilaunch: -H a:0: column 1: 'a:0': expected name:SLOTS")
    monkeypatch.delenv("UNILAUNCH_HOSTFILE")
    monkeypatch.setenv("UNILAUNCH_MEASURE", "perhaps")
    assert _unilaunch(["doctor"], tmp_path).stderr.startswith("unilaunch: UNILAUNCH_MEASURE: must be a valid boolean")
    assert _unilaunch(["explain"], tmp_path).returncode == 0  # it is the option of another command


def test_ranks_of_each_of_several_hosts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the hosts are not on the line: `-n` is the number of all ranks."""
    line = ["launch", "--allow-run-as-root", "--nproc-per-node", "2", "--dry-run"]
    monkeypatch.setenv("UNILAUNCH_HOSTS", "a:2,b:2")
    done = _unilaunch(line, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--nproc-per-node 2: there are several hosts: leave it out, and say how many ranks each host" in done.stderr
    monkeypatch.setenv("UNILAUNCH_HOSTS", "localhost:2")
    assert "--nproc-per-node" not in _unilaunch(line, tmp_path).stderr


@pytest.mark.parametrize(("words", "error"), [
    (["-x", "train.py"], "-x train.py: no TARGET is given: does this option lack its value?"),
    (["--mca", "key", "train.py"], "--mca train.py: no TARGET is given: does this option lack its value?"),
    (["--output-dir", "train.py"], "--output-dir train.py: no TARGET is given: does this option lack its value?"),
    (["-x", "A B=3", "train.py"], "-x: must be a variable, NAME or NAME=VALUE, not 'A B=3'"),
    (["-x", "=3", "train.py"], "-x: must be a variable, NAME or NAME=VALUE, not '=3'"),
    (["--mca", "btl=self", "x", "train.py"], "--mca: must be the parameter's name and its value, as two words: --mca"),
    (["--observe", "otlp=collector", "train.py"], "--observe otlp=collector: must be an address, such as http://HOST"),
    (["--observe", "otlp=http://host:port", "train.py"], "--observe otlp=http://host:port: must be an address"),
    (["--observe", "curves", "train.py"], "--observe: must be an observer's name, and where: tensorboard=FOLDER"),
    (["--observe", "wandb=x", "train.py"], "no observer 'wandb'; installed: mlflow, otlp, tensorboard"),
    (["--dataset", f"/{'a' * 300}.py", "--seed", "x"], "--seed: must be a whole number, not 'x'"),
    (["-n", "many", "train.py"], "-n many: expected a number of ranks, gpu, cpu or auto"),
    (["--nproc_per_node", "gpu", "train.py"], "-n gpu: no device is visible here: give a number"),
], ids=[
    "-x", "--mca", "folder", "space", "no name", "one word", "address", "port", "where", "observer", "long", "-n",
    "gpu",
])  # fmt: skip
def test_a_value_that_is_missing_or_wrong_starts_nothing(words: list[str], error: str, tmp_path: Path) -> None:
    """An option that took the script for its value left the built-in GCN, which trained."""
    (tmp_path / "train.py").touch()
    done = _unilaunch(["launch", *words], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"unilaunch: {error}")


def test_a_file_for_launch_is_refused_by_run(tmp_path: Path) -> None:
    """With the command that reads it; its fields are no misspelt options of a rank."""
    (tmp_path / "run.toml").write_text('target = "gcn"\nnprocs = 2\ngrace = 3\n')
    done = _unilaunch(["run", "--config", "run.toml"], tmp_path)
    launch = "unilaunch launch --config run.toml"
    assert done.stderr == f"unilaunch: run.toml: nprocs, grace: only launch can do that: type {launch}\n"


@pytest.mark.parametrize("words", ["--version", "--help", "launch --help", "explain", "launch -n 1 --emit sbatch a.py"])
def test_a_disk_without_room_is_one_line(words: str, tmp_path: Path) -> None:
    """And a reader who has enough is no error."""
    (tmp_path / "a.py").touch()
    shell = ["bash", "-c", f"{sys.executable} -m unilaunch {words} > /dev/full"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "unilaunch: the output cannot be written: No space left on device\n")
    shell[-1] = f"set -o pipefail; {sys.executable} -m unilaunch {words} | true"
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_is_the_packages(tmp_path: Path) -> None:
    """On standard output."""
    done = _unilaunch(["--version"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"unilaunch {__version__}\n", "")


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", "--help-all"], ("--backend", "--seed", "gcn 200, mnist 1", "{auto,cpu,cuda,npu}", "--normalize-features")),
    (["launch", "gcn", "--help"], ("unilaunch launch -n 2 --dataset cora", "--epochs N", "(default: sbm)")),
    (["run", "--help-all"], ("--task {classes,multilabel,regression}", "--master-port N", "--interface TEXT")),
    (["launch", "mnist", "--help"], ("one pass over the training images (default: 1)", "DATA_PATH, or the cache")),
    (["doctor", "-h"], ("--hostfile", "--mpirun")),
    (["logs", "--help"], ("--no-fold", "switch this off: show what several ranks write at once only")),
], ids=["everything", "of a model", "of none", "with others' names", "of a command", "of a switch"])  # fmt: skip
def test_help_shows_what_was_asked_for(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything with its default, or the options of one model."""
    with pytest.raises(SystemExit):
        parse(arguments)
    shown = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("command", ["launch", "run", "doctor", "logs"])
def test_help_is_one_page(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """60 lines of 80 columns, with the examples first, and no form of a switch that changes nothing."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines[1:])) <= 100  # an example may be long
    assert lines.index("examples:") < 6
    assert not any("--no-elastic" in line for line in lines)
    if command == "launch":
        assert any(line.startswith("  -n, --nprocs N") for line in lines)
        assert any(line.startswith("  -H, --hosts") for line in lines)
        assert any("(default: rank0)" in line for line in lines)


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_without_a_command_the_commands_are_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2 where nothing was asked for."""
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == (0 if arguments else 2)
    shown = capsys.readouterr().out
    assert all(f"  {command} " in shown for command in ("run", "launch", "doctor", "explain", "logs", "partition"))


def test_a_warning_of_a_library_is_one_line() -> None:
    """Of a command: not the path and the line of code that gave it."""
    program = """
import sys, warnings
from unilaunch.cli import main
from unilaunch_graph.partition_command import PartitionCommand
PartitionCommand.run = lambda *_: warnings.warn("there is no compiler") or 0
sys.argv = ["unilaunch", "partition", "--num-parts", "2"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "unilaunch: warning: there is no compiler\n"
