"""The command line: one line and exit code 2 for what is not allowed, before anything is done."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from unilaunch.spec.options import parse

#: Runs each line in a process of its own, forked from one that has imported what they need.
RUN = """
import json, os, sys
import unilaunch.job.attempts, unilaunch.spec.options
from unilaunch.cli import main
codes = []
for number, (words, environ, output) in enumerate(json.load(sys.stdin)):
    if not os.fork():
        reading, closed = os.pipe()
        os.close(reading)
        for descriptor, end in ((1, output or f"{number}.out"), (2, f"{number}.err")):
            os.dup2(closed if end == "closed" else os.open(end, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
        os.environ.update(environ)
        sys.argv[1:] = words
        main()
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(json.dumps(codes))
"""


def _unilaunch(
    lines: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None, output: str = ""
) -> list[tuple[int, str, str]]:
    """Return each line's exit code, output and errors; *output* is another file, or "closed": nobody reads it."""
    given = json.dumps([(shlex.split(line), environ or {}, output) for line in lines])
    done = subprocess.run([sys.executable, "-c", RUN], cwd=folder, input=given, stdout=-1, text=True, check=True)
    written = [
        ["" if output and end == "out" else (folder / f"{number}.{end}").read_text() for end in ("out", "err")]
        for number in range(len(lines))
    ]
    return [(code, out, errors) for code, (out, errors) in zip(json.loads(done.stdout), written, strict=True)]


#: A line, and what its refusal says.
REFUSED = {
    "train": "train: no such command; type unilaunch launch", "run --epoch=3": "did you mean --epochs?",
    "run --epoch 3": "--epoch: no such option; did you mean --epochs?", "run -z": "-z: no such option",
    "run --epochs": "--epochs: expected one argument", "run gcn mnist": "'mnist': there is one TARGET",
    "run --epochs 0 --seed x": "--epochs: must be greater", "run --config none.toml": "none.toml: ",
    "run --config launch.toml": "nprocs", "run --dataset no-such-data": "no-such-data", "partition": "--num-parts",
    "run --backend jax": "no backend 'jax'", "explain --device tpu": "--device: no such option",
    "partition --epochs 3": "--epochs: no such option",
    # An option that took the script for its value left the built-in GCN, which trained.
    "launch -x train.py": "-x train.py: no TARGET is given: does this option lack its value?",
    "launch -x 'A B=3' train.py": "-x: must be a variable, NAME or NAME=VALUE, not 'A B=3'",
    "launch --mca btl=self x train.py": "--mca: must be the parameter's name and its value, as two words: --mca",
    "launch --observe otlp=collector train.py": "otlp=collector: must be an address, such as http://HOST",
    "launch --observe curves train.py": "--observe: must be an observer's name, and where: tensorboard=FOLDER",
    "launch --observe wandb=x train.py": "no observer 'wandb'; installed: mlflow, otlp, tensorboard",
    f"launch --dataset /{'a' * 300}.py --seed x": "--seed: must be a whole number, not 'x'",
    "launch -n many train.py": "-n many: expected a number of ranks, gpu, cpu or auto",
}  # fmt: skip


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """The word is quoted, and the nearest option named; nothing on standard output, no traceback, nothing started."""
    (tmp_path / "launch.toml").write_text('target = "gcn"\nnprocs = 2\n')
    (tmp_path / "train.py").touch()
    for line, (code, out, errors) in zip(REFUSED, _unilaunch([*REFUSED], tmp_path), strict=True):
        assert (code, out, errors.count("\n")) == (2, "", 1), (line, errors)
        assert errors.startswith("unilaunch: "), line
        assert REFUSED[line] in errors
    assert not [*tmp_path.rglob("result.json")]


def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    """It was removed, or its file system is no longer mounted."""
    gone, lines = tmp_path / "gone", 'rmdir "$PWD"; exec "$@" launch -n 2 train.py'
    gone.mkdir()
    line = ["sh", "-c", lines, "sh", str(Path(sys.executable).with_name("unilaunch"))]
    done = subprocess.run(line, cwd=gone, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "unilaunch: the current folder no longer exists: cd to another one\n"


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


def test_the_doctor_checks_the_hosts_of_the_environment(tmp_path: Path) -> None:
    """Those that `launch` would use, or typed ones: it said that this host is ready, and looked at no other."""
    lines = ["doctor --allow-run-as-root", "doctor -H a:0"]
    (code, out, errors), (_, _, typed) = _unilaunch(lines, tmp_path, {"UNILAUNCH_HOSTFILE": "none"})
    assert (code, out) == (2, "")
    assert "UNILAUNCH_HOSTFILE" in errors or "none: no such file" in errors
    assert typed.startswith("unilaunch: -H a:0: column 1: 'a:0': expected name:SLOTS")
    doctor, other = _unilaunch(["doctor", "explain"], tmp_path, {"UNILAUNCH_MEASURE": "perhaps"})
    assert doctor[2].startswith("unilaunch: UNILAUNCH_MEASURE: must be a valid boolean")
    assert other[0] == 0  # it is the option of another command


def test_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    """And a reader who has enough is no error."""
    (tmp_path / "a.py").touch()
    lines = ["--version", "--help", "launch --help", "explain", "launch -n 1 --emit sbatch a.py"]
    full = (1, "", "unilaunch: the output cannot be written: No space left on device\n")
    assert _unilaunch(lines, tmp_path, output="/dev/full") == [full] * 5
    assert _unilaunch(lines, tmp_path, output="closed") == [(0, "", "")] * 5


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
