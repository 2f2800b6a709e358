"""Every command on the pages is run, planned or run elsewhere.

The tables of docs/start/ have `test_docs.py`, docs/tutorial.md has `test_tutorial.py`, and the examples in Python have
their pages' own tests.
"""

import io
import json
import os
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import BACKEND, NUMPY, NUMPY_BACKEND, finish
from jobs.test_docs import PAGES as TABLES
from jobs.test_docs import commands as commands_of_the_tables
from unilaunch.cli import main
from unilaunch.interfaces import plugins

pytestmark = pytest.mark.xdist_group("pages")  # they share a folder
DOCS = Path(__file__).parents[2] / "docs"
#: Pages whose blocks have a test of their own, or are commands for those who change the code (.ci/run runs them).
LEFT_OUT = {"tutorial.md", "contributing.md", "troubleshooting.md"}
#: Where the other commands are run: the start of a command, and the file.
ELSEWHERE = {
    "docker": "tests/test_dockerfile.py",
    "pip install": ".ci/run",
    "sbatch": "tests/jobs/test_sbatch.py",
    "srun": "tests/jobs/test_slurm.py",
    "kubectl": "tests/cluster/test_jobset_on_hosts.py",
    "export": "tests/jobs/test_docs.py",
    "unilaunch launch -n 2 gat.py": "tests/jobs/test_examples.py",
    "unilaunch plan": "tests/jobs/test_plan.py",
    "mpirun -n 4 python -m unilaunch predict": "tests/jobs/test_predictions.py",
    "node0$ unilaunch launch --nnodes": "tests/cluster/test_nodes_by_hand.py",
    "node1$ unilaunch launch --nnodes": "tests/cluster/test_nodes_by_hand.py",
    "unilaunch status": "tests/jobs/test_looking_in.py",
}
#: What starts ranks for the pages' own sake; a `launch` that a page shows further down is only planned.
STARTED = ("mpirun ", "unilaunch launch --hostfile hosts --max-restarts")
ENVIRON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "UNILAUNCH_ALLOW_RUN_AS_ROOT": "1",
    "UNILAUNCH_DATA": "data",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    BACKEND: "numpy",
    **NUMPY,
}


def _blocks(page: str) -> list[str]:
    """Return the commands in the blocks of a page, each in one line."""
    bodies = re.findall(r"^```(?:bash|console)\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(bodies).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line and not line.startswith("unilaunch: ")]


def _inline() -> list[str]:
    """Return the commands in the sentences and tables of the pages."""
    pages = [(DOCS / page).read_text() for page in PAGES if page not in {"tutorial.md", *TABLES}]
    text = re.sub(r"^```.*?^```", "", "".join(pages), flags=re.MULTILINE | re.DOTALL)
    spans = dict.fromkeys(re.findall(r"`((?:UNILAUNCH_\w+=\w+ )?(?:unilaunch|mpirun -n) [^`\n]+)`", text))
    return [line for line in spans if " ... " not in line]


def _refusals() -> list[tuple[str, str]]:
    page = (DOCS / "troubleshooting.md").read_text()
    return re.findall(r"^```console\n\$ (.*)\n(.*)\n```", page, re.MULTILINE)


PAGES = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
COMMANDS = list(dict.fromkeys(one for page in PAGES if page not in LEFT_OUT for one in _blocks(page)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name, and what a run has left in log_output."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "hosts").write_text("localhost slots=4\n")
    (folder / "typo").write_text("node0 slots=four\n")
    (folder / "run.toml").write_text("seed = 3\n")
    (folder / "examples").mkdir()
    (folder / "MNIST_Data").mkdir()
    for script in ("train.py", "gat.py", "examples/gat_from_pyg.py", "examples/link_prediction.py"):
        (folder / script).write_text("import sys\nprint(sys.argv)\n")
    np.savez(folder / "graph.npz", edge_index=np.arange(60).reshape(2, 30), x=np.eye(60), y=np.arange(60) % 3)
    line = [sys.executable, "-m", "unilaunch", "run", "--dataset", "sbm", "--epochs", "2"]
    finish(line, folder, _environ()).check()
    return folder


def _environ() -> dict[str, str]:
    return {**ENVIRON, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # noqa: TID251


def _call(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run a command in this process; return its exit code, and what it has written."""
    words = shlex.split(line.partition(" > ")[0])
    for name, value in _environ().items():
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
    return int(ended.value.code or 0), said.getvalue()


def _planned(line: str) -> str:
    """Return a `launch` as one that only checks and plans; any other command as it is."""
    return (
        line if "--emit" in line else line.replace("unilaunch launch", "unilaunch launch --dry-run --oversubscribe", 1)
    )


@pytest.mark.parametrize("line", [one for one in COMMANDS if one not in commands_of_the_tables()])
def test_a_command_of_a_block(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts ranks, or it does its work in this process; a further `launch` is planned, with every check."""
    if elsewhere := [file for start, file in ELSEWHERE.items() if line.startswith(start)]:
        assert (DOCS.parent / elsewhere[0]).exists()
    elif line.startswith(STARTED):
        finish(["sh", "-c", line], folder, _environ()).check()
    else:
        code, said = _call(_planned(line), folder, monkeypatch)
        assert (code, "Traceback" in said) == (0, False), said


def test_commands_in_sentences_and_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is taken as it stands: a `launch`, and a `run` under mpirun, is planned, and another command is parsed."""
    lines = [line for line in _inline() if find_spec("mindspore") or "--backend mindspore" not in line]
    assert len(lines) > 20
    for line in lines:
        planned = _planned(re.sub(r"mpirun -n \d python -m unilaunch run", "unilaunch launch -n 2", line))
        code, said = _call(planned if planned != line or "--emit" in line else f"{line} --help", folder, monkeypatch)
        assert code == 0, f"{line}: {said}"


def test_files_and_variables_of_a_run_are_on_their_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that a run leaves, every field of its result, and every variable that `explain` shows."""
    files = (DOCS / "reference" / "files.md").read_text()
    left = {path.name for path in (folder / "log_output").rglob("*") if path.is_file() and "previous" not in path.parts}
    fields = json.loads((folder / "log_output" / "result.json").read_text())
    assert {"events.jsonl", "result.json"} < left
    assert [name for name in [*left, *fields] if f"{name}`" not in files] == []
    variables = re.findall(r"^ +([A-Z_]+v?)=", _call("unilaunch explain", folder, monkeypatch)[1], re.MULTILINE)
    page = (DOCS / "reference" / "codes.md").read_text()
    known = re.findall(r"`([A-Z]+[A-Za-z_*]*)[=`]", page)
    assert len(variables) > 20
    assert [name for name in variables if not any(fnmatchcase(name, one) for one in known)] == []


def test_what_is_public_of_json_is_an_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that docs/stability.md names has --json; of `launch` the help shows it in full only."""
    (row,) = re.findall(r"^\| what `--json` prints \| (.*) \|$", (DOCS / "stability.md").read_text(), re.MULTILINE)
    lines = [f"unilaunch {one} --help{'-all' * (one == 'launch')}" for one in re.findall(r"`(\w+)", row)]
    assert len(lines) > 3
    assert [line for line in lines if "--json" not in _call(line, folder, monkeypatch)[1]] == []


@pytest.mark.parametrize(("line", "message"), _refusals(), ids=[line for line, _ in _refusals()])
def test_troubleshooting_quotes_messages_as_they_are(
    line: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is refused with exit code 2 and this line."""
    if "unilaunch run " in line or " -H " in line:  # their signal handlers stay to the end of their process
        done = finish(["sh", "-c", line], folder, _environ())
        code, said = done.returncode, done.console
    else:
        code, said = _call(line, folder, monkeypatch)
    pattern = re.escape(message).replace(re.escape("[...]"), ".*")
    assert (code, [one for one in said.splitlines() if re.fullmatch(pattern, one)] != []) == (2, True), said
