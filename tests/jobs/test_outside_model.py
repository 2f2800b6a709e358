"""A model that is not of this distribution: a module and an entry point on PYTHONPATH, in tests/outside_model."""

import json
import os
from pathlib import Path

from jobs.mpirun import NUMPY_BACKEND, Launcher, alone

OUTSIDE = {"PYTHONPATH": os.pathsep.join(map(str, (NUMPY_BACKEND, Path(__file__).parents[1] / "outside_model")))}


def test_its_curves_are_drawn_where_it_is_installed(openmpi5: Launcher, tmp_path: Path) -> None:
    """From what its ranks recorded; elsewhere the page says why it shows none. What is no number harms nobody."""
    job = openmpi5.unilaunch(2, ["run", "descent", "--backend", "numpy"], tmp_path, variables=OUTSIDE).check()
    assert job.result["lowest"] == 1 / 16
    page = tmp_path / "log_output" / "report.html"

    alone(["-m", "unilaunch", "report"], tmp_path, OUTSIDE).check()
    shown = page.read_text()
    for words in ("<h2>Height</h2>", "[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.125, 0.0625]", "<th>lowest height</th>"):
        assert words in shown

    alone(["-m", "unilaunch", "report"], tmp_path).check()
    shown = page.read_text()
    assert "the page shows no curves: no model &#39;descent&#39;" in shown
    assert "<th>lowest</th><td>0.0625</td>" in shown


def test_a_failure_names_its_step(openmpi5: Launcher, tmp_path: Path) -> None:
    """In the words of the model, and in failure.json as data."""
    arguments = ["run", "descent", "--backend", "numpy", "--ending", "killed"]
    job = openmpi5.unilaunch(2, arguments, tmp_path, variables=OUTSIDE)
    assert job.returncode == 137
    assert "killed by SIGKILL (exit code 137), in batch 4 of 4" in job.console
    failure = json.loads((job.output / "rank.1" / "failure.json").read_text())
    step = {"step": "batch", "number": 4, "total": 4, "values": {"height": 0.125}, "busy": None}
    assert failure["progress"] == step


def test_a_result_that_no_json_can_say_is_refused(openmpi5: Launcher, tmp_path: Path) -> None:
    """In one line, and no file holds NaN. Before, the job ended well and had no result."""
    arguments = ["run", "descent", "--backend", "numpy", "--ending", "nan"]
    job = openmpi5.unilaunch(2, arguments, tmp_path, variables=OUTSIDE)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert "model descent returned a value that cannot be written as JSON" in line
    assert not (job.output / "result.json").exists()
