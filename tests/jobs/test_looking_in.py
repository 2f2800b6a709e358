"""A job is looked into: its logs, and while it runs its state, its stacks, its metrics, its curves, and who is late."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs.mpirun import SHARED, Finished, Launcher, unilaunch, wait_until
from jobs.ports import free_ports
from unilaunch import __version__

MLFLOW = Path(__file__).parents[2] / ".mlflow" / "bin" / "python"
UNILAUNCH = [sys.executable, "-m", "unilaunch"]
_await = partial(wait_until, pause=0.3)

HEAD = "import os, sys, time\nfrom pathlib import Path\nrank = int(os.environ.get('OMPI_COMM_WORLD_RANK', 0))\n"
SAY = "print('hello')\nprint(f'I am {rank}', file=sys.stderr)\nsys.stdout.flush()\ntime.sleep(0.3)\n"
#: No rank fails, and ends the others, before all have printed.
MEET = (
    "def meet(place):\n    Path(f'{place}.{rank}').touch()\n"
    "    while len(list(Path().glob(f'{place}.?'))) < 4: time.sleep(0.01)\n"
)


def _logs(folder: Path, *arguments: str) -> list[str]:
    return unilaunch(["logs", *arguments], folder).check().stdout.splitlines()


def test_logs_of_our_folder(openmpi5: Launcher, tmp_path: Path) -> None:
    """With the first failure on top, and what all say once."""
    end = "meet('said')\nif rank == 2: sys.exit(5)\ntime.sleep(30)\n"
    (tmp_path / "script.py").write_text(f"{HEAD}{MEET}meet('begun')\n{SAY}{end}")
    openmpi5.unilaunch(4, ["run", "script.py"], tmp_path)
    first, *lines = _logs(tmp_path)
    assert (first.startswith("unilaunch: rank 2 on "), "SystemExit: 5" in first) == (True, True)
    assert [line.partition(" ")[2] for line in lines if "hello" in line] == ["[x4] hello"]
    assert sum("I am" in line for line in lines) == 4
    assert {line.split()[-1] for line in _logs(tmp_path, "--rank", "1,3", "--grep", "I am")[1:]} == {"1", "3"}
    (told,) = (json.loads(line) for line in _logs(tmp_path, "--json", "--grep", "hello"))
    assert (told["count"], sorted(told["ranks"]), told["stream"]) == (4, [0, 1, 2, 3], "stdout")
    assert abs(told["time"] - time.time()) < 60
    assert len(_logs(tmp_path, "--no-fold", "--grep", "hello")) == 1 + 4


def test_logs_of_mpiruns_own_files(launcher: Launcher, tmp_path: Path) -> None:
    """What --output-filename writes: a tree in 4, files beside it in 5."""
    (tmp_path / "script.py").write_text(HEAD + SAY)
    launcher.run(3, ["script.py"], tmp_path, options=("--output-filename", "log_output")).check()
    lines = _logs(tmp_path)
    assert sum(line.endswith("[x3] hello") for line in lines) == 1
    assert {line[-6:] for line in lines if "I am" in line} == {"I am 0", "I am 1", "I am 2"}


@pytest.mark.parametrize("end", ["", "os._exit(0)\n"])
def test_logs_follow_a_live_job_to_its_end(openmpi5: Launcher, end: str, tmp_path: Path) -> None:
    """From before it begins; also a script that does not return to unilaunch."""
    (tmp_path / "script.py").write_text(f"{HEAD}{SAY}time.sleep(1)\nprint('later', rank, flush=True)\n{end}")
    line = [*UNILAUNCH, "logs", "--follow"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as follower:
        openmpi5.unilaunch(2, ["run", "script.py"], tmp_path).check()
        said, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert [text in said for text in ("hello", "I am 0", "I am 1", "later 0", "later 1")] == [True] * 5


PROGRAM = str(Path(__file__).with_name("programs") / "straggling.py")
#: A line of Prometheus' text format; and one that names the late rank.
LINE = re.compile(r'# (HELP|TYPE) unilaunch_\w+ .+|unilaunch_\w+(\{(\w+="[^"]*",?)*\})? -?[\d.e+-]+')
STRAGGLER = re.compile(r'unilaunch_straggler\{rank="1",host="[^"]+"\} 1\.\d+')


def _late_status(folder: Path) -> dict[str, Any]:
    """Return the state, once rank 1 is named in it as the late one, and each rank's step is known."""
    done = unilaunch(["status", "--json"], folder)
    now = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    late = now.get("straggler") or {"straggler": None}
    steps = all((rank["seconds_per_step"] or 0) > 0.02 for rank in now.get("ranks", []))
    return now if steps and late["straggler"] == 1 and late["factor"] > 1.25 else {}


def _late_metrics(port: int) -> str:
    """Return the metrics, once they name the late rank."""
    with suppress(urllib.error.URLError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as got:
        text: str = got.read().decode()
        return text if STRAGGLER.search(text) else ""
    return ""


@pytest.mark.parametrize(
    ("start", "framework"), [pytest.param("launch", "mindspore", marks=pytest.mark.mindspore), ("mpirun", "torch")]
)
def test_a_late_rank_is_named_and_seen(openmpi5: Launcher, start: str, framework: str, tmp_path: Path) -> None:
    """In the state, the stacks, the metrics and the late rank's events; the socket is the owner's, and goes."""
    (port,), stop, folder = free_ports(1), tmp_path / "stop", tmp_path / "log_output"
    words = ["--metrics-port", str(port), PROGRAM, "--", str(stop), framework]
    line = {
        "launch": [*UNILAUNCH, "launch", "-n", "2", *openmpi5.options, *words],
        "mpirun": [str(openmpi5.path), "--oversubscribe", "-n", "2", *UNILAUNCH, "run", *words],
    }[start]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "UNILAUNCH_"))}  # noqa: TID251
    job = subprocess.Popen(line, cwd=tmp_path, env=environ | SHARED | root, stdin=subprocess.DEVNULL)
    try:
        # Each is waited for: a process may have been held up. First the metrics, since asking them starts no process.
        metrics = _await(lambda: _late_metrics(port))
        told = _await(lambda: _late_status(tmp_path))
        assert [(rank["state"], rank["phase"]) for rank in told["ranks"]] == [("running", "program")] * 2
        assert all(rank["memory_bytes"] > 1e7 for rank in told["ranks"])
        assert stat.S_IMODE((folder / ".monitor").stat().st_mode) == 0o600
        _await(lambda: "straggler: rank 1 on " in unilaunch(["status"], tmp_path).console)
        for option in ([], ["--full"]):
            assert "straggling.py" in unilaunch(["stacks", *option], tmp_path).check().console
        assert f'unilaunch_job_info{{run="{told["run"]}",version="{__version__}"}} 1\n' in metrics
        assert [line for line in metrics.splitlines() if not LINE.fullmatch(line)] == []
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/stacks", timeout=60)
    finally:
        stop.touch()
        assert job.wait(60) == 0
    events = (folder / "rank.1" / "events.jsonl").read_text().splitlines()
    assert any(json.loads(event).get("straggler") == 1 for event in events)
    assert not (folder / ".monitor").exists()
    assert unilaunch(["status"], tmp_path).console.startswith("done: 2 ranks\n")
    assert "the job there has ended: `unilaunch status log_output` says" in unilaunch(["stacks"], tmp_path).refusal()


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[str]:
    """Run a server, without the processes in which it would run jobs of its own; it takes half a minute to start."""
    if not MLFLOW.exists():
        pytest.skip(f"no {MLFLOW}: see .ci/run")
    (port,), log = free_ports(1), tmp_path / "server.log"
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", "sqlite:///runs.db"]
    line = ["env", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false", str(MLFLOW), "-m", "mlflow", "server", *options]
    with log.open("wb") as said:
        server = subprocess.Popen(line, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)
    try:
        wait_until(lambda: b"Application startup complete" in log.read_bytes(), 200)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _observed(url: str, folder: Path, *more: str) -> Finished:
    words = ["launch", "-n", "2", "--backend", "numpy", "--data-dir", "data", "--observe", f"mlflow={url}", *more]
    return unilaunch(words, folder, {"MLFLOW_EXPERIMENT_NAME": "own"})


@pytest.mark.usefixtures("by_numpy")
def test_the_curve_of_mlflow_is_that_of_the_result(mlflow: str, tmp_path: Path) -> None:
    """Each step once, the options as parameters, and how the job ended; both runs are in the user's experiment."""

    def ask(method: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(fields).encode() if fields else None
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{mlflow}/api/2.0/mlflow/{method}", data, kind)  # noqa: S310
        return dict(json.load(urllib.request.urlopen(request, timeout=60)))  # noqa: S310

    job = _observed(mlflow, tmp_path, "--epochs", "7", "--seed", "3").check()
    _observed(f"{mlflow}/", tmp_path, "--lr", "1e30", "--epochs", "50", "--output-dir", "diverged")
    number = ask("experiments/get-by-name?experiment_name=own")["experiment"]["experiment_id"]
    runs = {run["info"]["run_name"]: run for run in ask("runs/search", {"experiment_ids": [number]})["runs"]}
    states = {name: run["info"]["status"] for name, run in runs.items()}
    assert states == {"log_output": "FINISHED", "diverged": "FAILED"}
    run = runs["log_output"]
    parameters = {each["key"]: each["value"] for each in run["data"]["params"]}
    assert (parameters["epochs"], parameters["dataset"]) == ("7", job.result["dataset"])
    metrics = ask(f"metrics/get-history?run_id={run['info']['run_id']}&metric_key=loss")["metrics"]
    assert [each["step"] for each in metrics] == list(range(1, 8))
    assert [each["value"] for each in metrics] == pytest.approx(job.result["loss"], abs=1e-9)


@pytest.mark.usefixtures("by_numpy")
def test_a_job_goes_on_without_a_server_of_curves(tmp_path: Path) -> None:
    """One line, and no wait at the end."""
    job = _observed(f"http://127.0.0.1:{free_ports(1)[0]}", tmp_path, "--epochs", "3").check()
    assert sum("the curves do not arrive, the job goes on: " in line for line in job.refusals()) == 1
    assert job.seconds < 30
