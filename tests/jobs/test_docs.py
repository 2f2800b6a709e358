"""The right-hand columns of the tables in docs/start/: every command in them runs."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from jobs.idx import first_images
from jobs.mpirun import BACKEND, NUMPY, finish

ROOT = Path(__file__).parents[2]
MNIST = ROOT.parent / "shared" / "datasets" / "mnist"
PAGES = ("start/torchrun.md", "start/mindspore.md", "start/jittor.md")
STARTS = ("unilaunch ", "mpirun ", "torchrun ")
#: What the scripts are here: the tutorials' own run in test_programs.py, and in test_launch_on_hosts.py from `launch`.
LOOK = "import os, sys\nassert int(os.environ['RANK']) < int(os.environ['WORLD_SIZE']) == 2, sys.argv\n"
READ = LOOK + "open(os.path.join(os.environ['DATA_PATH'], 'train-images-idx3-ubyte')).close()\n"


def commands() -> list[str]:
    """Return the commands on the pages, each once."""
    lines = [line for page in PAGES for line in (ROOT / "docs" / page).read_text().splitlines()]
    rows = (line.split(" | ") for line in lines if "|" in line)
    ours = [code for row in rows for code in re.findall(r"`([^`]+)`", row[-1]) if code.startswith(STARTS)]
    return list(dict.fromkeys(ours))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name: scripts, a hostfile of this machine, and the MNIST files as the tutorials have them."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST files at {MNIST}")
    folder = tmp_path_factory.mktemp("reader")
    (folder / "hosts").write_text("localhost slots=2\n")
    first_images(MNIST, folder / "MNIST_Data", {"train": 640, "test": 640})
    for name, script in (("train.py", LOOK), ("net.py", READ)):
        (folder / name).write_text(script)
    return folder


def _data_path() -> str:
    """Return what the page of MindSpore exports."""
    page = (ROOT / "docs" / "start" / "mindspore.md").read_text()
    (path,) = re.findall(r"^\$ export DATA_PATH=(.*)$", page, re.MULTILINE)
    return str(path)


def test_there_are_commands() -> None:
    """The page is read as it is meant."""
    assert len(commands()) > 15


@pytest.mark.parametrize("command", [
    pytest.param(command, marks=[pytest.mark.mindspore] * ("--backend mindspore" in command)) for command in commands()
])  # fmt: skip
def test_what_readers_are_told_to_type_runs(command: str, folder: Path) -> None:
    """In the environment that they have just made, as root too."""
    environ = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "DATA_PATH": _data_path(),
        "UNILAUNCH_DATA": str(folder / "data"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # noqa: TID251
    }
    if "MNIST_Data" in command or "net.py" in command:
        del environ["UNILAUNCH_DATA"]
    if not any(word in command for word in ("train", "net.py", "--backend")):
        environ |= {**NUMPY, BACKEND: "numpy"}
    if "--dataset sbm" in command and "partition" not in command:
        environ |= {"UNILAUNCH_EPOCHS": "5"}
    if "--use_gdc" in command:
        environ |= {"UNILAUNCH_GDC_TOP_K": "16"}  # Mt-KaHyPar takes 12 s for the edges of the default
    finish(["sh", "-c", shlex.join(shlex.split(command))], folder, environ).check()
