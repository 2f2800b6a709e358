"""The command line: one line and exit code 2 for what is not allowed, before anything is done; help and completion."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from unilaunch.spec.options import parse

#: Runs each line in a process of its own, forked from one that has imported what they need.
RUN = """
import json, os, shlex, sys
import unilaunch.job.attempts, unilaunch.spec.options
from unilaunch.cli import main
ends = []
for line in sys.argv[1:]:
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 2)
        sys.argv[1:] = shlex.split(line)
        main()
    os.close(writing)
    errors = open(reading).read()
    ends.append((os.waitstatus_to_exitcode(os.wait()[1]), errors))
json.dump(ends, sys.stderr)
"""


def _unilaunch(*lines: str, folder: Path, output: IO[str] | int = -1, **environ: str) -> list[tuple[int, str]]:
    """Return each line's exit code and errors; nothing is on standard output, unless that is elsewhere."""
    own = os.environ | environ  # noqa: TID251
    words = [sys.executable, "-c", RUN, *lines]
    done = subprocess.run(words, cwd=folder, env=own, stdout=output, stderr=-1, text=True, check=True)
    assert not done.stdout
    return [(code, errors) for code, errors in json.loads(done.stderr)]


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
    "doctor -H a:0": "-H a:0: column 1: 'a:0': expected name:SLOTS",
}  # fmt: skip


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """The word is quoted, and the nearest option named; nothing on standard output, no traceback, nothing started."""
    (tmp_path / "launch.toml").write_text('target = "gcn"\nnprocs = 2\n')
    (tmp_path / "train.py").touch()
    for line, (code, errors) in zip(REFUSED, _unilaunch(*REFUSED, folder=tmp_path), strict=True):
        assert (code, errors.count("\n"), errors[:11]) == (2, 1, "unilaunch: "), (line, errors)
        assert REFUSED[line] in errors
    assert not [*tmp_path.rglob("result.json")]
    # The hosts of the environment: it said that this host is ready, and looked at no other.
    ((code, errors),) = _unilaunch("doctor --allow-run-as-root", folder=tmp_path, UNILAUNCH_HOSTFILE="none")
    assert (code, "none: no such file" in errors) == (2, True)


def test_a_folder_that_is_gone_and_outputs_that_are_closed(tmp_path: Path) -> None:
    """The output is in the rank's files; with errors that nobody reads Python itself would exit with 120."""
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "gone").mkdir()
    (tmp_path / "script.py").write_text("print('said')\n")
    for line, stderr, code, said in (
        ('cd gone; rmdir "$PWD"; exec "$@" launch -n 2 script.py', subprocess.PIPE, 2,
         "unilaunch: the current folder no longer exists: cd to another one\n"),
        ('exec "$@" launch --no-such-option', writing, 2, None),
        ('exec "$@" run script.py <&- >&- 2>&-', None, 0, None),
    ):  # fmt: skip
        words = ["sh", "-c", line, "sh", str(Path(sys.executable).with_name("unilaunch"))]
        done = subprocess.run(words, cwd=tmp_path, stderr=stderr, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, said)
        assert code or (tmp_path / "log_output" / "rank.0" / "stdout").read_text() == "said\n"
    os.close(writing)


def test_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    """And a reader who has enough is no error."""
    (tmp_path / "a.py").touch()
    lines = ["--version", "--help", "launch --help", "explain", "launch -n 1 --emit sbatch a.py"]
    said = "unilaunch: the output cannot be written: No space left on device\n"
    with Path("/dev/full").open("w") as full:
        assert _unilaunch(*lines, folder=tmp_path, output=full) == [(1, said)] * 5
    reading, closed = os.pipe()
    os.close(reading)
    assert _unilaunch(*lines, folder=tmp_path, output=closed) == [(0, "")] * 5
    os.close(closed)


def _shown(line: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    with pytest.raises(SystemExit) as end:
        parse(line.split())
    assert end.value.code == code
    return capsys.readouterr().out


def test_help_shows_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything with its default, or the options of one model; without a command the commands."""
    commands = "run", "launch", "doctor", "explain", "logs", "partition"
    for line, code, words in (
        ("run --help-all", 0, ("--backend", "--seed", "gcn 200, mnist 1", "{auto,cpu,cuda,npu}", "--master-port N")),
        ("launch gcn --help", 0, ("unilaunch launch -n 2 --dataset cora", "--epochs N", "(default: sbm)")),
        ("doctor -h", 0, ("--hostfile", "--mpirun")), ("", 2, commands), ("help", 0, commands), ("--help", 0, commands),
        ("logs --help", 0, ("--no-fold", "switch this off: show what several ranks write at once only")),
    ):  # fmt: skip
        shown = " ".join(_shown(line, capsys, code).split())
        assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("command", ["launch", "run", "doctor", "logs"])
def test_help_is_one_page(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = _shown(f"{command} --help", capsys).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines[1:])) <= 100  # an example may be long
    assert lines.index("examples:") < 6
    assert not any("--no-elastic" in line for line in lines)
    assert command != "launch" or any(line.startswith("  -n, --nprocs N") for line in lines)


COMPLETED = {
    "lau": {"launch"}, "run --epo": {"--epochs"}, "run --device cu": {"cuda"}, "run --backend min": {"mindspore"},
    "run g": {"gcn"}, "run tra": {"train.py"}, "run calib": set(), "run --dataset cit": {"citeseer"},
    "run --dataset tra": {"train.py"}, "launch --hostfile hos": {"hosts.txt"}, "launch --emit sba": {"sbatch"},
    "launch --emit sbatch --acc": {"--account"}, "launch --emit jobset --ima": {"--image"},
}  # fmt: skip


def test_bash_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In a real bash: commands, options, choices, models, data sets and files."""
    for name in ("train.py", "hosts.txt"):
        (tmp_path / name).touch()
    script = _shown("--print-completion bash", capsys)
    for line in COMPLETED:
        words = ["unilaunch", *line.split()]
        script += f"\nCOMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1} COMPREPLY=()\n"
        script += 'compopt() { :; }; _shtab_unilaunch; echo "OFFERED ${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)
    offered = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("OFFERED")]
    assert dict(zip(COMPLETED, offered, strict=True)) == COMPLETED, done.stderr
