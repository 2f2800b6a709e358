"""A distribution of somebody else's adds a plug-in of each kind; this project's tree knows none.

It is a folder with a dist-info on PYTHONPATH: as pip would install it.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from jobs.mpirun import NUMPY_BACKEND, Finished, Launcher, finish, unilaunch

OUTSIDE = Path(__file__).parent / "outside"
ENTRY_POINTS = """
[unilaunch.launchers]
mympi = mympi:MyMpi
[unilaunch.jobfiles]
listing = mympi:Listing
[unilaunch.backends]
plain = mympi:PlainBackend
[unilaunch.models]
counting = mympi:CountingModel
[unilaunch.observers]
ledger = mympi:Ledger
"""
RUN = ["counting", "--backend", "plain", "--step", "3"]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Install the distribution into a folder of its own, and return the variables that make it known."""
    site = tmp_path / "site"
    (site / "mympi-1.dist-info").mkdir(parents=True)
    (site / "mympi-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mympi\nVersion: 1\n")
    (site / "mympi-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(OUTSIDE / "mympi.py", site)
    program = site / "mympirun"
    program.write_text(f"#!{sys.executable}\n{(OUTSIDE / 'mympirun.py').read_text()}")
    program.chmod(0o755)
    return {"PYTHONPATH": str(site)}


def _launch(arguments: list[str], folder: Path, variables: dict[str, str]) -> Finished:
    return unilaunch(["launch", *arguments], folder, variables)


def _check_result(job: Finished) -> None:
    job.check()
    named = {name: job.result[name] for name in ("launcher", "backend", "model", "world_size", "counted")}
    assert named == {
        "launcher": "My MPI", "backend": "plain", "model": "counting", "world_size": 2, "counted": [3, 6]
    }  # fmt: skip


def test_launch_starts_with_its_launcher(variables: dict[str, str], tmp_path: Path) -> None:
    """Its model, on its backend."""
    words = ["--mpirun", str(tmp_path / "site" / "mympirun"), "-n", "2", *RUN]
    _check_result(_launch(words, tmp_path, variables))
    shown = _launch([*words, "--dry-run", "--json"], tmp_path, variables).check()
    assert json.loads(shown.stdout)["mpirun"]["launcher"] == "My MPI"


def test_a_bare_start_by_its_launcher(variables: dict[str, str], tmp_path: Path) -> None:
    """Ranks find each other, and explain names the launcher, and its variables, which stay on their host."""
    line = [str(tmp_path / "site" / "mympirun"), "-n", "2", sys.executable, "-m", "unilaunch"]
    _check_result(finish([*line, "run", *RUN], tmp_path, variables))
    shown = finish([*line, "explain"], tmp_path, variables).check().stdout
    assert "rank 1 of 2, local rank 1 of 2" in shown
    assert re.search(r"\bMYMPI_RANK, MYMPI_SIZE\b.*: of a launcher", shown)


def test_its_observer(variables: dict[str, str], tmp_path: Path) -> None:
    """It is told the numbers while the job runs, and how the job has ended; what it refuses starts nothing."""
    words = ["--mpirun", str(tmp_path / "site" / "mympirun"), "-n", "2", "--observe", "ledger=ledger.txt", *RUN]
    _launch(words, tmp_path, variables).check()
    assert (tmp_path / "ledger.txt").read_text() == "log_output: 2 ranks, {'step': 3}\nexit codes [0]\n"
    refused = _launch(["--observe", "ledger=/", *words], tmp_path, variables)
    assert "--observe ledger=/: must be a file" in refused.refusal()


def test_its_job_file(variables: dict[str, str], tmp_path: Path) -> None:
    """--emit takes its name, as --help shows, and with it the options that it brings; no other one takes them."""
    words = ["-n", "2", "-H", "a:1,b:1", "--indent", "2", *RUN]
    job = _launch(["--emit", "listing", *words], tmp_path, variables).check()
    assert job.stdout == "  rank 0: a cpu\n  rank 1: b cpu\n"
    assert "--indent" in _launch(["--emit", "listing", "--help"], tmp_path, variables).check().stdout
    refused = _launch(["--emit", "mpijob", *words], tmp_path, variables)
    assert "--indent: only --emit listing takes it" in refused.refusal()
    assert re.search(r"--emit KIND[^-]*\blisting\b", _launch(["--help"], tmp_path, variables).check().stdout)


@pytest.mark.parametrize(("environ", "words"), [
    ({"MYMPI_SIZE": "4"}, "MYMPI_SIZE=4 says that there are 4 ranks, as My MPI sets it"),
    ({"MYMPI_SIZE": "two", "MYMPI_RANK": "0"}, "My MPI's environment is not valid: MYMPI_SIZE=two"),
], ids=["half of it", "no number"])  # fmt: skip
def test_an_environment_that_is_not_its_own_is_refused(
    environ: dict[str, str], words: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """Its size alone says that there are more ranks; `Launcher.describe` names a variable that is no number."""
    assert words in unilaunch(["run", *RUN], tmp_path, variables | environ).refusal()


def test_a_mistake_in_a_plug_in_is_told_as_an_exception(variables: dict[str, str], tmp_path: Path) -> None:
    """Before a rank's work too: its traceback, and its type in the verdict."""
    job = unilaunch(["run", "counting", "--backend", "plain", "--step", "13"], tmp_path, variables)
    assert job.returncode == 1
    assert job.stderr.count('raise ValueError("thirteen")') == 1
    assert "no exception" not in job.stderr


#: The model in tests/outside_model.
DESCENT = ["run", "descent", "--backend", "numpy"]
OF_MODEL = {"PYTHONPATH": os.pathsep.join(map(str, (NUMPY_BACKEND, OUTSIDE.parents[1] / "outside_model")))}


def test_the_curves_of_a_model_are_drawn_where_it_is_installed(openmpi5: Launcher, tmp_path: Path) -> None:
    """From what its ranks recorded; elsewhere the page says why it shows none. What is no number harms nobody."""
    job = openmpi5.unilaunch(2, DESCENT, tmp_path, variables=OF_MODEL).check()
    assert job.result["lowest"] == 1 / 16
    page = tmp_path / "log_output" / "report.html"
    unilaunch(["report"], tmp_path, OF_MODEL).check()
    shown = page.read_text()
    for words in ("<h2>Height</h2>", "[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.125, 0.0625]", "<th>lowest height</th>"):
        assert words in shown
    unilaunch(["report"], tmp_path).check()
    shown = page.read_text()
    assert "the page shows no curves: no model &#39;descent&#39;" in shown
    assert "<th>lowest</th><td>0.0625</td>" in shown


def test_a_failure_names_the_step_of_a_model(openmpi5: Launcher, tmp_path: Path) -> None:
    """In its words, and in failure.json as data; a result that JSON cannot say is refused in one line."""
    job = openmpi5.unilaunch(2, [*DESCENT, "--ending", "killed"], tmp_path, variables=OF_MODEL)
    assert job.returncode == 137
    assert "killed by SIGKILL (exit code 137), in batch 4 of 4" in job.console
    step = {"step": "batch", "number": 4, "total": 4, "values": {"height": 0.125}, "busy": None}
    assert job.failure(1)["progress"] == step
    job = openmpi5.unilaunch(2, [*DESCENT, "--ending", "nan"], tmp_path, variables=OF_MODEL)
    assert "model descent returned a value that cannot be written as JSON" in job.refusal()
    assert not (job.output / "result.json").exists()
