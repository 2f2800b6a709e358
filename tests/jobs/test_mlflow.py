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

from jobs.mpirun import Finished, Launcher, wait_until
from jobs.ports import free_ports

MLFLOW = Path(__file__).parents[2] / ".mlflow" / "bin" / "python"
pytestmark = [pytest.mark.usefixtures("by_numpy")]
one_server = pytest.mark.xdist_group("MLflow")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server; it takes half a minute to start."""
    if not MLFLOW.exists():
        pytest.skip(f"no {MLFLOW}: see .ci/run")
    (port,), folder = free_ports(1), tmp_path_factory.mktemp("mlflow")
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", "sqlite:///runs.db"]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [MLFLOW, "-m", "mlflow", "server", *options], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until(lambda: b"Application startup complete" in (folder / "log").read_bytes(), 200)
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


def _launch(launcher: Launcher, url: str, folder: Path, *more: str, experiment: str = "") -> Finished:
    words = ["--data-dir", "data", "--observe", f"mlflow={url}", *more]
    return launcher.launch(2, words, folder, {"MLFLOW_EXPERIMENT_NAME": experiment})


@one_server
def test_the_servers_curve_is_that_of_the_result(openmpi5: Launcher, server: str, tmp_path: Path) -> None:
    """Each step once, the options as parameters, and how the job ended; the second run is in the same experiment."""
    job = _launch(openmpi5, server, tmp_path, "--epochs", "7", "--seed", "3").check()
    refused = _launch(openmpi5, server, tmp_path, "--lr", "1e30", "--epochs", "50", "--output-dir", "diverged")
    assert refused.returncode == 1
    experiment = _ask(server, "experiments/get-by-name?experiment_name=unilaunch")["experiment"]["experiment_id"]
    runs = _ask(server, "runs/search", {"experiment_ids": [experiment]})["runs"]
    states = {run["info"]["run_name"]: run["info"]["status"] for run in runs}
    assert states == {"log_output": "FINISHED", "diverged": "FAILED"}
    (run,) = (run for run in runs if run["info"]["run_name"] == "log_output")
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert (parameters["epochs"], parameters["dataset"]) == ("7", job.result["dataset"])
    metrics = _ask(server, f"metrics/get-history?run_id={run['info']['run_id']}&metric_key=loss")["metrics"]
    assert [each["step"] for each in metrics] == list(range(1, 8))
    assert [each["value"] for each in metrics] == pytest.approx(job.result["loss"], abs=1e-9)


@one_server
def test_the_users_experiment_is_taken(openmpi5: Launcher, server: str, tmp_path: Path) -> None:
    """As MLflow's own programs read it."""
    _launch(openmpi5, f"{server}/", tmp_path, "--epochs", "2", experiment="the user's").check()
    experiment = _ask(server, "experiments/get-by-name?experiment_name=the%20user%27s")["experiment"]["experiment_id"]
    assert len(_ask(server, "runs/search", {"experiment_ids": [experiment]})["runs"]) == 1


def test_a_job_goes_on_without_a_server(openmpi5: Launcher, tmp_path: Path) -> None:
    """One line, and no wait at the end."""
    (port,) = free_ports(1)
    job = _launch(openmpi5, f"http://127.0.0.1:{port}", tmp_path, "--epochs", "3").check()
    (said,) = (line for line in job.refusals() if "--observe mlflow=" in line)
    assert "the curves do not arrive, the job goes on: " in said
    assert job.seconds < 30
