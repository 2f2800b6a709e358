"""Every command on the pages is run, planned or run elsewhere.

docs/tutorial.md has `test_tutorial.py`, and the examples in Python have their pages' own tests.
"""

import io
import os
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from jobs.idx import first_images
from jobs.mpirun import BACKEND, NUMPY, NUMPY_BACKEND, finish
from unilaunch.cli import main
from unilaunch.interfaces import plugins

pytestmark = pytest.mark.xdist_group("pages")  # they share a folder
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MNIST = ROOT.parent / "shared" / "datasets" / "mnist"
#: Pages whose blocks have a test of their own, are commands that are refused, or are for those who change the code.
LEFT_OUT = {"tutorial.md", "contributing.md", "troubleshooting.md"}
#: Where the other commands are run: the start of a command, and the file.
ELSEWHERE = {
    "docker": "tests/test_dockerfile.py",
    "pip install": ".ci/run",
    "sbatch": "tests/jobs/test_slurm.py",
    "srun": "tests/jobs/test_slurm.py",
    "kubectl": "tests/cluster/test_jobset_on_hosts.py",
    "export": "tests/jobs/test_pages.py",
    "unilaunch launch -n 2 gat.py": "tests/jobs/test_examples.py",
    "unilaunch plan": "tests/jobs/test_plan.py",
    "mpirun -n 4 python -m unilaunch predict": "tests/jobs/test_predictions.py",
    "node0$ unilaunch launch --nnodes": "tests/cluster/test_nodes_by_hand.py",
    "node1$ unilaunch launch --nnodes": "tests/cluster/test_nodes_by_hand.py",
    "unilaunch status": "tests/jobs/test_looking_in.py",
}
#: What starts ranks for the pages' own sake; a `launch` that a page shows further down is only planned.
STARTED = ("mpirun ", "unilaunch launch --hostfile hosts train.py")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ENVIRON = {
    **AS_ROOT, "UNILAUNCH_ALLOW_RUN_AS_ROOT": "1", "UNILAUNCH_DATA": "data",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", BACKEND: "numpy", **NUMPY,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # noqa: TID251
}  # fmt: skip
#: The pages whose tables say what to type here in place of a line of another tool.
NEWCOMERS = ("start/torchrun.md", "start/mindspore.md", "start/jittor.md")
#: What their scripts are here: the tutorials' own run in test_programs.py.
LOOK = "import os, sys\nassert int(os.environ['RANK']) < int(os.environ['WORLD_SIZE']) == 2, sys.argv\n"
READ = LOOK + "open(os.path.join(os.environ['DATA_PATH'], 'train-images-idx3-ubyte')).close()\n"


def _blocks(page: str) -> list[str]:
    """Return the commands in the blocks of a page, each in one line."""
    bodies = re.findall(r"^```(?:bash|console)\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(bodies).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line and not line.startswith("unilaunch: ")]


def _inline() -> list[str]:
    """Return the commands in the sentences and tables of the pages."""
    pages = [(DOCS / page).read_text() for page in PAGES if page not in {"tutorial.md", *NEWCOMERS}]
    text = re.sub(r"^```.*?^```", "", "".join(pages), flags=re.MULTILINE | re.DOTALL)
    spans = dict.fromkeys(re.findall(r"`((?:UNILAUNCH_\w+=\w+ )?(?:unilaunch|mpirun -n) [^`\n]+)`", text))
    return [line for line in spans if " ... " not in line]


def _of_the_tables() -> list[str]:
    """Return the commands in the right-hand columns of the tables for newcomers."""
    text = "".join((DOCS / page).read_text() for page in NEWCOMERS)
    rows = [line.split(" | ")[-1] for line in text.splitlines() if "|" in line]
    return [code for row in rows for code in re.findall(r"`((?:unilaunch|mpirun|torchrun) [^`]+)`", row)]


PAGES = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
TABLES = list(dict.fromkeys(_of_the_tables()))
COMMANDS = dict.fromkeys(one for page in PAGES if page not in LEFT_OUT for one in _blocks(page) if one not in TABLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name, and what a run has left in log_output."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "hosts").write_text("localhost slots=4\n")
    (folder / "run.toml").write_text("seed = 3\n")
    (folder / "examples").mkdir()
    (folder / "MNIST_Data").mkdir()
    for script in ("train.py", "gat.py", "examples/gat_from_pyg.py", "examples/link_prediction.py"):
        (folder / script).write_text("import sys\nprint(sys.argv)\n")
    np.savez(folder / "graph.npz", edge_index=np.arange(60).reshape(2, 30), x=np.eye(60), y=np.arange(60) % 3)
    line = [sys.executable, "-m", "unilaunch", "run", "--dataset", "sbm", "--epochs", "2"]
    finish(line, folder, ENVIRON).check()
    return folder


def _call(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command in this process, to a good end."""
    words = shlex.split(line.partition(" > ")[0])
    for name, value in (
        ENVIRON | {"UNILAUNCH_DATA": str(folder / "data")}
    ).items():  # what outlives the call stays there
        monkeypatch.setenv(name, value)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(str(NUMPY_BACKEND))
    monkeypatch.setattr(plugins, "_table", {})  # another test of this process may have read it
    plugins.make_all.cache_clear()
    monkeypatch.chdir(folder)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main()
    plugins.make_all.cache_clear()
    assert (int(ended.value.code or 0), "Traceback" in said.getvalue()) == (0, False), f"{line}: {said.getvalue()}"
    return said.getvalue()


def _planned(line: str) -> str:
    """Return a `launch` as one that only checks and plans; any other command as it is."""
    options = "" if "--emit" in line else " --dry-run --oversubscribe"
    return line.replace("unilaunch launch", f"unilaunch launch{options}", 1)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_a_block(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts ranks, or it does its work in this process; a further `launch` is planned, with every check."""
    if elsewhere := [file for start, file in ELSEWHERE.items() if line.startswith(start)]:
        assert (ROOT / elsewhere[0]).exists()
    elif line.startswith(STARTED):
        finish(["sh", "-c", line], folder, ENVIRON).check()
    else:
        _call(_planned(line), folder, monkeypatch)


def test_commands_in_sentences_and_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is taken as it stands: a `launch`, and a `run` under mpirun, is planned, and another command is parsed."""
    lines = [line for line in _inline() if find_spec("mindspore") or "--backend mindspore" not in line]
    assert lines
    for line in lines:
        planned = _planned(re.sub(r"mpirun -n \d python -m unilaunch run", "unilaunch launch -n 2", line))
        _call(planned if planned != line or "--emit" in line else f"{line} --help", folder, monkeypatch)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of the tables name: scripts, a hostfile of this machine, and MNIST as the tutorials have it."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST files at {MNIST}")
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "hosts").write_text("localhost slots=2\n")
    first_images(MNIST, folder / "MNIST_Data", {"train": 640, "test": 640})
    for name, script in (("train.py", LOOK), ("net.py", READ)):
        (folder / name).write_text(script)
    return folder


@pytest.mark.parametrize("command", [
    pytest.param(command, marks=[pytest.mark.mindspore] * ("--backend mindspore" in command)) for command in TABLES
])  # fmt: skip
def test_what_newcomers_are_told_to_type_runs(command: str, newcomer: Path) -> None:
    """In the environment that they have just made, as root too; DATA_PATH is what the page of MindSpore exports."""
    page = (DOCS / "start" / "mindspore.md").read_text()
    (data_path,) = re.findall(r"^\$ export DATA_PATH=(.*)$", page, re.MULTILINE)
    environ = {**AS_ROOT, "DATA_PATH": data_path, "PATH": ENVIRON["PATH"]}
    if "MNIST_Data" not in command and "net.py" not in command:
        environ |= {"UNILAUNCH_DATA": str(newcomer / "data")}
    if not any(word in command for word in ("train", "net.py", "--backend")):
        environ |= {**NUMPY, BACKEND: "numpy"}
    if "--dataset sbm" in command and "partition" not in command:
        environ |= {"UNILAUNCH_EPOCHS": "5"}
    if "--use_gdc" in command:
        environ |= {"UNILAUNCH_GDC_TOP_K": "16"}  # Mt-KaHyPar takes 12 s for the edges of the default
    finish(["sh", "-c", shlex.join(shlex.split(command))], newcomer, environ).check()
