"""The command line: one line and exit code 2 for what is not allowed, before anything is done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("arguments", [
    "run --epochs 0 --seed x", "run --config none.toml", "run --dataset no-such-data", "run --backend jax",
    "run --config launch.toml", "explain --device tpu", "partition",
])  # fmt: skip
def test_a_refusal_is_one_line_and_exit_code_2(arguments: str, tmp_path: Path) -> None:
    """Nothing on standard output, no traceback."""
    (tmp_path / "launch.toml").write_text('target = "gcn"\nnprocs = 2\n')
    done = _unilaunch(arguments.split(), tmp_path)
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


@pytest.mark.parametrize(("words", "error"), [
    (["-x", "train.py"], "-x train.py: no TARGET is given: does this option lack its value?"),
    (["-x", "A B=3", "train.py"], "-x: must be a variable, NAME or NAME=VALUE, not 'A B=3'"),
    (["--mca", "btl=self", "x", "train.py"], "--mca: must be the parameter's name and its value, as two words: --mca"),
    (["--observe", "otlp=collector", "train.py"], "--observe otlp=collector: must be an address, such as http://HOST"),
    (["--observe", "curves", "train.py"], "--observe: must be an observer's name, and where: tensorboard=FOLDER"),
    (["--observe", "wandb=x", "train.py"], "no observer 'wandb'; installed: mlflow, otlp, tensorboard"),
    (["--dataset", f"/{'a' * 300}.py", "--seed", "x"], "--seed: must be a whole number, not 'x'"),
    (["-n", "many", "train.py"], "-n many: expected a number of ranks, gpu, cpu or auto"),
], ids=["-x", "space", "one word", "address", "where", "nobody", "long", "-n"])  # fmt: skip
def test_a_value_that_is_missing_or_wrong_starts_nothing(words: list[str], error: str, tmp_path: Path) -> None:
    """An option that took the script for its value left the built-in GCN, which trained."""
    (tmp_path / "train.py").touch()
    done = _unilaunch(["launch", *words], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"unilaunch: {error}")


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


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", "--help-all"], ("--backend", "--seed", "gcn 200, mnist 1", "{auto,cpu,cuda,npu}", "--master-port N")),
    (["launch", "gcn", "--help"], ("unilaunch launch -n 2 --dataset cora", "--epochs N", "(default: sbm)")),
    (["launch", "mnist", "--help"], ("one pass over the training images (default: 1)", "DATA_PATH, or the cache")),
    (["doctor", "-h"], ("--hostfile", "--mpirun")),
    (["logs", "--help"], ("--no-fold", "switch this off: show what several ranks write at once only")),
], ids=["everything", "of a model", "with others' names", "of a command", "of a switch"])  # fmt: skip
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


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_without_a_command_the_commands_are_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2 where nothing was asked for."""
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == (0 if arguments else 2)
    shown = capsys.readouterr().out
    assert all(f"  {command} " in shown for command in ("run", "launch", "doctor", "explain", "logs", "partition"))
