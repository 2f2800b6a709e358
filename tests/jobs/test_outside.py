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

from jobs.mpirun import NUMPY_BACKEND, Launcher, finish, unilaunch

OUTSIDE = Path(__file__).parent / "outside"
ENTRY_POINTS = """
[unilaunch.launchers]
mympi = mympi:MyMpi
[unilaunch.jobfiles]
listing = mympi:Listing
[unilaunch.observers]
ledger = mympi:Ledger
"""
RUN = ["descent", "--backend", "numpy"]


#: A backend and a model from outside this project's tree, too.
OTHERS = os.pathsep.join(map(str, (NUMPY_BACKEND, OUTSIDE.parents[1] / "outside_model")))


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Install the distribution into a folder of its own, and return the variables that make it known."""
    info = tmp_path / "site" / "mympi-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mympi\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(OUTSIDE / "mympi.py", tmp_path / "site")
    program = tmp_path / "site" / "mympirun"
    program.write_text(f"#!{sys.executable}\n{(OUTSIDE / 'mympirun.py').read_text()}")
    program.chmod(0o755)
    return {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{OTHERS}"}


def test_its_launcher_starts_a_model(variables: dict[str, str], tmp_path: Path) -> None:
    """By launch and bare. The plan and explain name the launcher, and its variables, which stay on their host."""
    mpirun, module = str(tmp_path / "site" / "mympirun"), [sys.executable, "-m", "unilaunch"]
    launch, bare = [*module, "launch", "--mpirun", mpirun, "-n", "2", *RUN], [mpirun, "-n", "2", *module]
    for line in (launch, [*bare, "run", *RUN]):
        job = finish(line, tmp_path, variables).check()
        named = [job.result[name] for name in ("launcher", "backend", "model", "world_size", "lowest")]
        assert named == ["My MPI", "numpy", "descent", 2, 1 / 16]
    shown = finish([*launch, "--dry-run", "--json"], tmp_path, variables).check()
    assert json.loads(shown.stdout)["mpirun"]["launcher"] == "My MPI"
    text = finish([*bare, "explain"], tmp_path, variables).check().stdout
    assert "rank 1 of 2, local rank 1 of 2" in text  # before or behind what rank 0 shows
    assert re.search(r"\bMYMPI_RANK, MYMPI_SIZE\b.*: of a launcher", text)


def test_its_observer(variables: dict[str, str], tmp_path: Path) -> None:
    """It is told the numbers while the job runs, and how the job has ended; what it refuses starts nothing."""
    words = ["launch", "--mpirun", str(tmp_path / "site" / "mympirun"), "-n", "2", *RUN, "--observe"]
    unilaunch([*words, "ledger=ledger.txt"], tmp_path, variables).check()
    assert (tmp_path / "ledger.txt").read_text() == "log_output: 2 ranks, {'ending': 'well'}\nexit codes [0]\n"
    assert "ledger=/: must be a file" in unilaunch([*words, "ledger=/"], tmp_path, variables).refusal()


def test_its_job_file(variables: dict[str, str], tmp_path: Path) -> None:
    """--emit takes its name, and with it the options that it brings, as --help shows; no other one takes them."""
    words = ["-n", "2", "-H", "a:1,b:1", "--indent", "2", *RUN]
    ours, other, help_ = (
        unilaunch(["launch", "--emit", *line], tmp_path, variables)
        for line in (["listing", *words], ["mpijob", *words], ["listing", "--help"])
    )
    assert ours.check().stdout == "  rank 0: a cpu\n  rank 1: b cpu\n"
    assert "--indent: only --emit listing takes it" in other.refusal()
    assert "--indent" in help_.check().stdout


def test_the_curves_of_a_model_are_drawn(openmpi5: Launcher, tmp_path: Path) -> None:
    """From what its ranks recorded. What is no number harms nobody."""
    environ = {"PYTHONPATH": OTHERS}
    job = openmpi5.unilaunch(2, ["run", *RUN], tmp_path, variables=environ).check()
    unilaunch(["report"], tmp_path, environ).check()
    for words in ("<h2>Height</h2>", "[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.125, 0.0625]", "<th>lowest height</th>"):
        assert words in (job.output / "report.html").read_text()


def test_a_failure_names_the_step_of_a_model(openmpi5: Launcher, tmp_path: Path) -> None:
    """In its words, and in failure.json as data; a result that JSON cannot say is refused in one line."""
    job = openmpi5.unilaunch(2, ["run", *RUN, "--ending", "killed"], tmp_path, variables={"PYTHONPATH": OTHERS})
    assert job.returncode == 137
    assert "killed by SIGKILL (exit code 137), in batch 4 of 4" in job.console
    step = {"step": "batch", "number": 4, "total": 4, "values": {"height": 0.125}, "busy": None}
    assert job.failure(1)["progress"] == step
    job = openmpi5.unilaunch(2, ["run", *RUN, "--ending", "nan"], tmp_path, variables={"PYTHONPATH": OTHERS})
    assert "a value that cannot be written as JSON" in job.refusal()
    assert not (job.output / "result.json").exists()
