"""Every command on the pages is run, planned or run elsewhere; the tutorial is typed from top to bottom."""

import os
import re
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from jobs.idx import first_images
from jobs.mpirun import BACKEND, NUMPY, finish

pytestmark = pytest.mark.xdist_group("pages")  # they share a folder
DOCS = Path(__file__).parents[2] / "docs"
MNIST, CORA = (DOCS.parents[1] / "shared" / "datasets" / name for name in ("mnist", "planetoid"))
BLOCK = r'^```(python|diff|console)(?: title="([^"]*)")?\n(.*?)^```'
#: Pages whose blocks have a test of their own, are commands that are refused, or are for those who change the code.
LEFT_OUT = {"tutorial.md", "contributing.md", "troubleshooting.md"}
#: How a command begins that is run elsewhere: in tests/cluster, in another file of this folder, or by .ci/run.
ELSEWHERE = (
    "docker", "kubectl", "node0$", "node1$", "sbatch", "srun", "export", "pip install", "unilaunch launch -n 2 gat.py",
    "unilaunch plan", "unilaunch status", "mpirun -n 4 python -m unilaunch predict",
)  # fmt: skip
#: What starts ranks for the pages' own sake; a `launch` that a page shows further down is only planned.
STARTED = ("mpirun ", "unilaunch launch --hostfile hosts train.py")
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # noqa: TID251
}  # fmt: skip
ENVIRON = {
    **AS_ROOT, "UNILAUNCH_ALLOW_RUN_AS_ROOT": "1", "UNILAUNCH_DATA": "data", BACKEND: "numpy", **NUMPY,
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}  # fmt: skip
#: The pages whose tables say what to type here in place of a line of another tool.
NEWCOMERS = ("start/torchrun.md", "start/mindspore.md", "start/jittor.md")
#: What their scripts are here: the tutorials' own run in test_programs.py.
LOOK = "import os, sys\nassert int(os.environ['RANK']) < int(os.environ['WORLD_SIZE']) == 2, sys.argv\n"
READ = LOOK + "open(os.path.join(os.environ['DATA_PATH'], 'train-images-idx3-ubyte')).close()\n"


def _commands(page: str) -> list[str]:
    """Return the commands in the blocks of a page, each in one line."""
    bodies = re.findall(r"^```(?:bash|console)\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    lines = "".join(bodies).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line and not line.startswith("unilaunch: ")]


PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
ROWS = [line.split(" | ")[-1] for page in NEWCOMERS for line in PAGES[page].splitlines() if "|" in line]
TABLES = list(dict.fromkeys(re.findall(r"`((?:unilaunch|mpirun|torchrun) [^`]+)`", "\n".join(ROWS))))
COMMANDS = dict.fromkeys(one for page in PAGES if page not in LEFT_OUT for one in _commands(page) if one not in TABLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name, and what a run has left in log_output."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "hosts").write_text("localhost slots=4\n")
    (folder / "run.toml").write_text("seed = 3\n")
    (folder / "train.py").write_text("import sys\nprint(sys.argv)\n")
    np.savez(folder / "graph.npz", edge_index=np.arange(60).reshape(2, 30), x=np.eye(60), y=np.arange(60) % 3)
    line = [sys.executable, "-m", "unilaunch", "run", "--dataset", "sbm", "--epochs", "2"]
    finish(line, folder, ENVIRON).check()
    return folder


def _planned(line: str) -> str:
    """Return a `launch` as one that only checks and plans; any other command as it is."""
    options = "" if "--emit" in line else " --dry-run --oversubscribe"
    return line.replace("unilaunch launch", f"unilaunch launch{options}", 1)


@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith(ELSEWHERE)])
def test_a_command_of_a_block(line: str, folder: Path) -> None:
    """It starts ranks, or does its work alone; a further `launch` is planned, with every check."""
    finish(["sh", "-c", line if line.startswith(STARTED) else _planned(line)], folder, ENVIRON).check()


def test_commands_in_sentences_and_tables(folder: Path) -> None:
    """Each is taken as it stands: a `launch`, and a `run` under mpirun, is planned, and another command is parsed."""
    text = "".join(text for page, text in PAGES.items() if page not in {"tutorial.md", *NEWCOMERS})
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = dict.fromkeys(re.findall(r"`((?:UNILAUNCH_\w+=\w+ )?(?:unilaunch|mpirun -n) [^`\n]+)`", text))
    taken = []
    for line in lines:
        planned = _planned(re.sub(r"mpirun -n \d python -m unilaunch run", "unilaunch launch -n 2", line))
        if " ... " not in line and (find_spec("mindspore") or "--backend mindspore" not in line):
            command = planned if planned != line or "--emit" in line else f"{line} --help"
            taken.append(command.partition(" > ")[0])
    assert len(taken) > 10
    finish(["sh", "-exc", "\n".join(taken)], folder, ENVIRON).check()


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of the tables name: scripts, a hostfile of this machine, and MNIST as the tutorials have it."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST files at {MNIST}")
    folder = tmp_path_factory.mktemp("newcomer")
    first_images(MNIST, folder / "MNIST_Data", {"train": 640, "test": 640})
    for name, text in (("train.py", LOOK), ("net.py", READ), ("hosts", "localhost slots=2\n")):
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("command", [
    pytest.param(command, marks=[pytest.mark.mindspore] * ("--backend mindspore" in command)) for command in TABLES
])  # fmt: skip
def test_what_newcomers_are_told_to_type_runs(command: str, newcomer: Path) -> None:
    """In the environment that they have just made, as root too; DATA_PATH is what the page of MindSpore exports."""
    (data_path,) = re.findall(r"^\$ export DATA_PATH=(.*)$", PAGES["start/mindspore.md"], re.MULTILINE)
    environ = {**AS_ROOT, "DATA_PATH": data_path}
    if "MNIST_Data" not in command and "net.py" not in command:
        environ |= {"UNILAUNCH_DATA": str(newcomer / "data")}
    if not any(word in command for word in ("train", "net.py", "--backend")):
        environ |= {**NUMPY, BACKEND: "numpy"}
    if "--dataset sbm" in command and "partition" not in command:
        environ |= {"UNILAUNCH_EPOCHS": "5"}
    if "--use_gdc" in command:
        environ |= {"UNILAUNCH_GDC_TOP_K": "16"}  # Mt-KaHyPar takes 12 s for the edges of the default
    finish(["sh", "-c", command], newcomer, environ).check()


@pytest.mark.system  # Cora's files beside the clone
def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    """The files are written and changed as the page says; Cora's lie where PyG and unilaunch keep what they fetch."""
    if not CORA.is_dir():
        pytest.skip(f"no files of Cora at {CORA}")
    for place in (tmp_path / "data" / "Cora" / "raw", tmp_path / "cache" / "planetoid"):
        place.parent.mkdir(parents=True)
        place.symlink_to(CORA)
    kinds = []
    for kind, name, text in re.findall(BLOCK, PAGES["tutorial.md"], re.MULTILINE | re.DOTALL):
        kinds.append(kind)
        if kind == "python":
            (tmp_path / name).write_text(text)
        elif kind == "diff":
            _change(tmp_path / name, text)
        else:
            _type(text, tmp_path)
    assert kinds.count("diff") == 3


def _change(file: Path, diff: str) -> None:
    """Apply a diff without line numbers; its hunks are separated by @@."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines()
        old, new = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
        text = file.read_text()
        assert text.count(old) == 1, f"{file.name} has not: {old}"
        file.write_text(text.replace(old, new))


def _type(block: str, folder: Path) -> None:
    """Run the commands of a block one after the other; each shown line is in the output, in this order."""
    environ = {**AS_ROOT, "UNILAUNCH_DATA": str(folder / "cache")}
    for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        ended = finish(["bash", "-c", f"exec 2>&1; {line}"], folder, environ)
        assert (ended.returncode != 0) == ("failed" in shown), ended.stdout
        said = ended.stdout.replace(str(folder), "~").replace(socket.gethostname(), "vm")
        rest = iter(said.splitlines())
        assert [one for one in shown.splitlines() if one not in rest] == [], f"{line}: {said}"
