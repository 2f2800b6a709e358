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
[unilaunch.models]
counting = mympi:CountingModel
[unilaunch.observers]
ledger = mympi:Ledger
"""
RUN = ["counting", "--backend", "numpy", "--step", "3"]


def _path(*folders: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(map(str, (NUMPY_BACKEND, *folders)))}


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
    return _path(tmp_path / "site")


@pytest.mark.parametrize("way", ["launch", "bare"])
def test_its_launcher_starts_its_model(way: str, variables: dict[str, str], tmp_path: Path) -> None:
    """Ranks find each other; the plan and explain name the launcher, and its variables, which stay on their host."""
    mpirun, module = str(tmp_path / "site" / "mympirun"), [sys.executable, "-m", "unilaunch"]
    launch, bare = [*module, "launch", "--mpirun", mpirun, "-n", "2", *RUN], [mpirun, "-n", "2", *module]
    job = finish(launch if way == "launch" else [*bare, "run", *RUN], tmp_path, variables).check()
    named = [job.result[name] for name in ("launcher", "backend", "model", "world_size", "counted")]
    assert named == ["My MPI", "numpy", "counting", 2, [3, 6]]
    if way == "launch":
        shown = finish([*launch, "--dry-run", "--json"], tmp_path, variables).check()
        assert json.loads(shown.stdout)["mpirun"]["launcher"] == "My MPI"
    else:
        text = finish([*bare, "explain"], tmp_path, variables).check().stdout
        assert "rank 1 of 2, local rank 1 of 2" in text
        assert re.search(r"\bMYMPI_RANK, MYMPI_SIZE\b.*: of a launcher", text)


def test_its_observer(variables: dict[str, str], tmp_path: Path) -> None:
    """It is told the numbers while the job runs, and how the job has ended; what it refuses starts nothing."""
    words = ["launch", "--mpirun", str(tmp_path / "site" / "mympirun"), "-n", "2", *RUN, "--observe"]
    unilaunch([*words, "ledger=ledger.txt"], tmp_path, variables).check()
    assert (tmp_path / "ledger.txt").read_text() == "log_output: 2 ranks, {'step': 3}\nexit codes [0]\n"
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


@pytest.mark.parametrize(("environ", "words"), [
    ({"MYMPI_SIZE": "4"}, "MYMPI_SIZE=4 says that there are 4 ranks"),  # its size alone
    ({"MYMPI_SIZE": "two", "MYMPI_RANK": "0"}, "MYMPI_SIZE=two"),
])  # fmt: skip
def test_an_environment_that_is_not_its_own_is_refused(
    environ: dict[str, str], words: str, variables: dict[str, str], tmp_path: Path
) -> None:
    assert words in unilaunch(["run", *RUN], tmp_path, variables | environ).refusal()


def test_a_mistake_in_a_plug_in_is_told_as_an_exception(variables: dict[str, str], tmp_path: Path) -> None:
    job = unilaunch(["run", *RUN[:-1], "13"], tmp_path, variables)
    assert (job.returncode, job.stderr.count('raise ValueError("thirteen")')) == (1, 1)


#: The model in tests/outside_model.
DESCENT = ["run", "descent", "--backend", "numpy"]
OF_MODEL = _path(OUTSIDE.parents[1] / "outside_model")


def test_the_curves_of_a_model_are_drawn_where_it_is_installed(openmpi5: Launcher, tmp_path: Path) -> None:
    """From what its ranks recorded; elsewhere the page says why it shows none. What is no number harms nobody."""
    job = openmpi5.unilaunch(2, DESCENT, tmp_path, variables=OF_MODEL).check()
    assert job.result["lowest"] == 1 / 16
    for variables, told in (
        (OF_MODEL, ("<h2>Height</h2>", "[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.125, 0.0625]", "<th>lowest height</th>")),
        ({}, ("shows no curves: no model &#39;descent&#39;", "<th>lowest</th><td>0.0625</td>")),
    ):
        unilaunch(["report"], tmp_path, variables).check()
        assert [words for words in told if words not in (job.output / "report.html").read_text()] == []


def test_a_failure_names_the_step_of_a_model(openmpi5: Launcher, tmp_path: Path) -> None:
    """In its words, and in failure.json as data; a result that JSON cannot say is refused in one line."""
    job = openmpi5.unilaunch(2, [*DESCENT, "--ending", "killed"], tmp_path, variables=OF_MODEL)
    assert job.returncode == 137
    assert "killed by SIGKILL (exit code 137), in batch 4 of 4" in job.console
    step = {"step": "batch", "number": 4, "total": 4, "values": {"height": 0.125}, "busy": None}
    assert job.failure(1)["progress"] == step
    job = openmpi5.unilaunch(2, [*DESCENT, "--ending", "nan"], tmp_path, variables=OF_MODEL)
    assert "a value that cannot be written as JSON" in job.refusal()
    assert not (job.output / "result.json").exists()
