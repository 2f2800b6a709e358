"""The right-hand column of docs/coming-from.md: every command in it runs."""

import gzip
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from jobs.mpirun import BACKEND, NUMPY, finish

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
MNIST = ROOT.parent / "shared" / "datasets" / "mnist"
STARTS = ("unilaunch ", "mpirun ", "torchrun ")
#: Commands that run the tutorials' own programs; elsewhere these names are programs that only look where they are.
WHOLE = ("unilaunch launch -n 2 net.py", "unilaunch launch -n 2 train.py --lr 0.1", "torchrun ")
LOOK = "import os, sys\nassert int(os.environ['RANK']) < int(os.environ['WORLD_SIZE']) == 2, sys.argv\n"


def _commands() -> list[str]:
    """Return the commands that readers are told to type, each once."""
    rows = (line.split(" | ") for line in (ROOT / "docs" / "coming-from.md").read_text().splitlines() if "|" in line)
    ours = [code for row in rows for code in re.findall(r"`([^`]+)`", row[-1]) if code.startswith(STARTS)]
    return list(dict.fromkeys(ours))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name: scripts, a hostfile of this machine, and the MNIST files as the tutorials have them."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST files at {MNIST}")
    folder = tmp_path_factory.mktemp("reader")
    (folder / "hosts").write_text("localhost slots=2\n")
    (folder / "MNIST_Data").mkdir()
    for file in MNIST.glob("*.gz"):
        with gzip.open(file) as packed, (folder / "MNIST_Data" / file.stem).open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    return folder


def test_there_are_commands() -> None:
    """The page is read as it is meant."""
    assert len(_commands()) > 15


@pytest.mark.parametrize("command", _commands())
def test_what_readers_are_told_to_type_runs(command: str, folder: Path) -> None:
    """In the environment that they have just made, as root too."""
    whole = command.startswith(WHOLE)
    for name, program in (("train.py", "ddp.py"), ("net.py", "mindspore_net.py")):
        (folder / name).write_text((PROGRAMS / program).read_text() if whole else LOOK)
    environ = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "DATA_PATH": str(folder / "MNIST_Data"),
        "UNILAUNCH_DATA": str(folder / "data"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # noqa: TID251
    }
    if "MNIST_Data" in command or "net.py" in command:
        del environ["UNILAUNCH_DATA"]
    if not any(word in command for word in ("train", "net.py", "--backend", "torchrun")):
        environ |= {**NUMPY, BACKEND: "numpy"}
    finish(["sh", "-c", shlex.join(shlex.split(command))], folder, environ, 100).check()
