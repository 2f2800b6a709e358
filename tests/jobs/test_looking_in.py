"""A running job is looked into from another terminal: its state, its stacks, its metrics, and who is late."""

import json
import os
import re
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs.mpirun import SHARED, Launcher, unilaunch, wait_until
from jobs.ports import free_ports
from unilaunch import __version__
from unilaunch.machine.addresses import listen

_await = partial(wait_until, pause=0.3)
PROGRAM = Path(__file__).with_name("programs") / "straggling.py"
#: A line of Prometheus' text format.
LINE = re.compile(r'# (HELP|TYPE) unilaunch_\w+ .+|unilaunch_\w+(\{(\w+="[^"]*",?)*\})? -?[\d.e+-]+')


@contextmanager
def _running(line: list[str], folder: Path) -> Iterator[None]:
    """Run a job while the block runs, and see that it ends well."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "UNILAUNCH_"))}  # noqa: TID251
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with (folder / "console").open("wb") as console:
        job = subprocess.Popen(
            line, cwd=folder, env=environ | SHARED | root, stdin=subprocess.DEVNULL, stdout=console,
            stderr=console, start_new_session=True,
        )  # fmt: skip
        try:
            yield
            assert job.wait(60) == 0, (folder / "console").read_text()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, 9)
                job.wait()


def _ask(folder: Path, *words: str) -> tuple[int, str]:
    done = unilaunch([*words], folder)
    return done.returncode, done.console


def _status(folder: Path) -> dict[str, Any]:
    code, text = _ask(folder, "status", "--json")
    return json.loads(text) if code == 0 and text.startswith("{") else {"ranks": [], "straggler": None}


def _metrics(port: int) -> str:
    """Return the metrics; nothing while there are none."""
    with suppress(urllib.error.URLError):
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
        with answer:
            return str(answer.read().decode())
    return ""


def _shows_it(now: dict[str, Any]) -> bool:
    """Return whether rank 1 is named as the late one, and each rank's step is known."""
    late = now["straggler"] or {"straggler": None, "factor": 0.0}
    steps = all((rank["seconds_per_step"] or 0) > 0.02 for rank in now["ranks"])
    return steps and late["straggler"] == 1 and late["factor"] > 1.25


@pytest.mark.mindspore
def test_a_late_rank_of_a_script_is_named_and_seen(openmpi5: Launcher, tmp_path: Path) -> None:
    """In the state, the stacks, the metrics and the late rank's events; the socket is the owner's, and goes."""
    (port,), stop = free_ports(1), tmp_path / "stop"
    options = [*openmpi5.options, "--metrics-port", str(port)]
    line = [sys.executable, "-m", "unilaunch", "launch", "-n", "2", *options, str(PROGRAM), "--"]
    straggler = re.compile(r'unilaunch_straggler\{rank="1",host="[^"]+"\} 1\.\d+')
    with _running([*line, str(stop), "mindspore"], tmp_path):
        # For two windows after one in which a process was held up, it looks otherwise: so each is waited for. First the
        # metrics: asking them starts no process.
        metrics = _await(lambda: straggler.search(now := _metrics(port)) and now)
        told = _await(lambda: _shows_it(now := _status(tmp_path)) and now)
        assert [rank["state"] for rank in told["ranks"]] == ["running"] * 2
        assert all(rank["memory_bytes"] > 1e7 for rank in told["ranks"])
        assert stat.S_IMODE((tmp_path / "log_output" / ".monitor").stat().st_mode) == 0o600
        _await(lambda: "straggler: rank 1 on " in _ask(tmp_path, "status")[1])
        _, stacks = _ask(tmp_path, "stacks")
        assert "(straggling.py:" in stacks
        assert "in phase 'program'" in stacks
        assert f'unilaunch_job_info{{run="{told["run"]}",version="{__version__}"}} 1\n' in metrics
        assert [line for line in metrics.splitlines() if not LINE.fullmatch(line)] == []
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/stacks", timeout=60)
        stop.touch()
    events = (tmp_path / "log_output" / "rank.1" / "events.jsonl").read_text().splitlines()
    assert any(json.loads(event).get("straggler") == 1 for event in events)
    assert not (tmp_path / "log_output" / ".monitor").exists()
    assert _ask(tmp_path, "status")[1].startswith("done: 2 ranks\n")
    code, said = _ask(tmp_path, "stacks")
    ended = "unilaunch: log_output: the job there has ended: `unilaunch status log_output` says how\n"
    assert (code, said) == (2, ended)


def test_a_bare_mpirun_can_be_looked_into(openmpi5: Launcher, tmp_path: Path) -> None:
    """There rank 0's agent is the monitor; the late rank is seen in PyTorch, too."""
    (port,), stop = free_ports(1), tmp_path / "stop"
    run = [sys.executable, "-m", "unilaunch", "run", "--metrics-port", str(port), str(PROGRAM), "--", str(stop)]
    with _running([str(openmpi5.path), "--oversubscribe", "-n", "2", *run, "torch"], tmp_path):
        _await(lambda: 'unilaunch_steps_total{rank="1"' in _metrics(port))
        told = _await(lambda: _shows_it(now := _status(tmp_path)) and now)
        assert [rank["phase"] for rank in told["ranks"]] == ["program", "program"]
        code, stacks = _ask(tmp_path, "stacks", "--full")
        assert (code, "straggling.py" in stacks) == (0, True)
        stop.touch()


def test_a_port_that_is_taken_is_refused_before_anything_starts(openmpi5: Launcher, tmp_path: Path) -> None:
    with listen(0, several=False) as taken:
        port = str(taken.getsockname()[1])
        job = openmpi5.launch(1, ["--metrics-port", port, str(PROGRAM)], tmp_path)
    assert f"--metrics-port {port}: cannot listen on 127.0.0.1: Address already in use" in job.refusal()
    assert not (tmp_path / "log_output").exists()
