"""A model's curves on a real MLflow server: what it has is what the job's result has."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from jobs.mpirun import Finished, unilaunch, wait_until
from jobs.ports import free_ports

MLFLOW = Path(__file__).parents[2] / ".mlflow" / "bin" / "python"
pytestmark = pytest.mark.usefixtures("by_numpy")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Run a server, without the processes in which it would run jobs of its own; it takes half a minute to start."""
    if not MLFLOW.exists():
        pytest.skip(f"no {MLFLOW}: see .ci/run")
    (port,), log = free_ports(1), tmp_path / "server.log"
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", "sqlite:///runs.db"]
    line = ["env", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false", str(MLFLOW), "-m", "mlflow", "server", *options]
    with log.open("wb") as said:
        started = subprocess.Popen(line, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)
    try:
        wait_until(lambda: b"Application startup complete" in log.read_bytes(), 200)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _ask(server: str, method: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if fields is None else json.dumps(fields).encode()
    request = Request(f"{server}/api/2.0/mlflow/{method}", data, {"Content-Type": "application/json"})  # noqa: S310
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        found: dict[str, Any] = json.loads(answer.read())
    return found


def _runs(server: str, experiment: str) -> list[dict[str, Any]]:
    """Return the runs of an experiment."""
    number = _ask(server, f"experiments/get-by-name?experiment_name={experiment}")["experiment"]["experiment_id"]
    runs: list[dict[str, Any]] = _ask(server, "runs/search", {"experiment_ids": [number]})["runs"]
    return runs


def _launch(url: str, folder: Path, *more: str, experiment: str = "") -> Finished:
    words = ["launch", "-n", "2", "--data-dir", "data", "--observe", f"mlflow={url}", *more]
    return unilaunch(words, folder, {"MLFLOW_EXPERIMENT_NAME": experiment})


def test_the_servers_curve_is_that_of_the_result(server: str, tmp_path: Path) -> None:
    """Each step once, the options as parameters, and how the job ended; the second run is in the same experiment.

    The third one is in the experiment that the user has named for MLflow's own programs.
    """
    job = _launch(server, tmp_path, "--epochs", "7", "--seed", "3").check()
    refused = _launch(server, tmp_path, "--lr", "1e30", "--epochs", "50", "--output-dir", "diverged")
    assert refused.returncode == 1
    runs = {run["info"]["run_name"]: run for run in _runs(server, "unilaunch")}
    states = {name: run["info"]["status"] for name, run in runs.items()}
    assert states == {"log_output": "FINISHED", "diverged": "FAILED"}
    run = runs["log_output"]
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert (parameters["epochs"], parameters["dataset"]) == ("7", job.result["dataset"])
    metrics = _ask(server, f"metrics/get-history?run_id={run['info']['run_id']}&metric_key=loss")["metrics"]
    assert [each["step"] for each in metrics] == list(range(1, 8))
    assert [each["value"] for each in metrics] == pytest.approx(job.result["loss"], abs=1e-9)
    _launch(f"{server}/", tmp_path, "--epochs", "2", "--output-dir", "own", experiment="the user's").check()
    assert len(_runs(server, "the%20user%27s")) == 1


def test_a_job_goes_on_without_a_server(tmp_path: Path) -> None:
    """One line, and no wait at the end."""
    (port,) = free_ports(1)
    job = _launch(f"http://127.0.0.1:{port}", tmp_path, "--epochs", "3").check()
    (said,) = (line for line in job.refusals() if "--observe mlflow=" in line)
    assert "the curves do not arrive, the job goes on: " in said
    assert job.seconds < 30
