"""A distribution of somebody else's adds a plug-in of each kind; this project's tree knows none.

It is a folder with a dist-info on PYTHONPATH: as pip would install it.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from jobs.mpirun import Finished, alone, finish

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
    return alone(["-m", "unilaunch", "launch", *arguments], folder, variables)


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
    """Ranks find each other, and explain names the launcher."""
    line = [str(tmp_path / "site" / "mympirun"), "-n", "2", sys.executable, "-m", "unilaunch"]
    _check_result(finish([*line, "run", *RUN], tmp_path, variables))
    assert "rank 1 of 2, local rank 1 of 2" in finish([*line, "explain"], tmp_path, variables).check().stdout


def test_its_observer(variables: dict[str, str], tmp_path: Path) -> None:
    """It is told the numbers while the job runs, and how the job has ended; what it refuses starts nothing."""
    words = ["--mpirun", str(tmp_path / "site" / "mympirun"), "-n", "2", "--observe", "ledger=ledger.txt", *RUN]
    _launch(words, tmp_path, variables).check()
    assert (tmp_path / "ledger.txt").read_text() == "log_output: 2 ranks, {'step': 3}\nexit codes [0]\n"
    refused = _launch(["--observe", "ledger=/", *words], tmp_path, variables)
    assert (refused.returncode, refused.stderr) == (2, "unilaunch: --observe ledger=/: must be a file\n")


def test_its_job_file(variables: dict[str, str], tmp_path: Path) -> None:
    """--emit takes its name, as --help shows, and with it the options that it brings; no other one takes them."""
    words = ["-n", "2", "-H", "a:1,b:1", "--indent", "2", *RUN]
    job = _launch(["--emit", "listing", *words], tmp_path, variables).check()
    assert job.stdout == "  rank 0: a cpu\n  rank 1: b cpu\n"
    assert "--indent" in _launch(["--emit", "listing", "--help"], tmp_path, variables).check().stdout
    refused = _launch(["--emit", "rankfile", *words], tmp_path, variables)
    assert (refused.returncode, refused.stderr) == (2, "unilaunch: --indent: only --emit listing takes it\n")
    assert re.search(r"--emit KIND[^-]*\blisting\b", _launch(["--help"], tmp_path, variables).check().stdout)


def test_half_of_its_environment_is_refused(variables: dict[str, str], tmp_path: Path) -> None:
    """Its size alone says that there are more ranks."""
    job = alone(["-m", "unilaunch", "run", *RUN], tmp_path, variables | {"MYMPI_SIZE": "4"})
    assert job.returncode == 2
    assert "MYMPI_SIZE=4 says that there are 4 ranks, as My MPI sets it" in job.stderr


def test_a_number_that_is_none_is_refused(variables: dict[str, str], tmp_path: Path) -> None:
    """`Launcher.describe` names the variable."""
    job = alone(["-m", "unilaunch", "run", *RUN], tmp_path, variables | {"MYMPI_SIZE": "two", "MYMPI_RANK": "0"})
    assert (job.returncode, job.stderr) == (
        2,
        "unilaunch: My MPI's environment is not valid: MYMPI_SIZE=two; do not set these by hand\n",
    )


def test_a_mistake_in_a_plug_in_is_told_as_an_exception(variables: dict[str, str], tmp_path: Path) -> None:
    """Before a rank's work too: its traceback, and its type in the verdict."""
    job = alone(["-m", "unilaunch", "run", "counting", "--backend", "plain", "--step", "13"], tmp_path, variables)
    assert job.returncode == 1
    assert job.stderr.count('raise ValueError("thirteen")') == 1
    assert "no exception" not in job.stderr


def test_its_plug_ins_are_unknown_where_it_is_not_installed(tmp_path: Path) -> None:
    """One line names those that are installed."""
    job = alone(["-m", "unilaunch", "run", "--backend", "plain"], tmp_path)
    assert job.returncode == 2
    assert "no backend 'plain'; installed: mindspore, torch" in job.stderr
