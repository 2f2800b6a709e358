"""Live metrics to a real OpenTelemetry collector."""

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.collector import collecting, read_points
from unilaunch.errors import PluginError
from unilaunch.job import otlp
from unilaunch.job.otlp import exporting

RANK = {
    "rank": 0, "host": "node0", "state": "running", "step": {"kind": "epoch", "number": 7, "total": 9}, "steps": 7,
    "values": {"loss": 0.25}, "busy_seconds": 0.5, "seconds_per_step": 0.1, "received_bytes": 4096,
    "memory_bytes": 1, "idle_seconds": 0.0,
}  # fmt: skip
JOB = {"run": "a", "size": 1, "restarts": 2, "straggler": None, "ranks": [RANK]}


def test_a_collector_receives_the_figures_at_the_end_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with collecting(log) as url, exporting(url, lambda: JOB, print):
        pass
    sender, points = read_points(log)
    assert sender == "unilaunch"
    assert points["unilaunch.value"] == [({"rank": "0", "host": "node0", "name": "loss"}, 0.25)]
    assert points["unilaunch.received_bytes_total"] == [({"rank": "0", "host": "node0"}, 4096)]
    assert points["unilaunch.restarts_total"] == [({}, 2)]
    assert re.search(r"unilaunch\.restarts_total\n(.*\n){3}.*IsMonotonic: true", log.read_text())


def test_the_user_names_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night shift")
    with collecting(tmp_path / "log") as url, exporting(url, lambda: JOB, print):
        pass
    assert read_points(tmp_path / "log")[0] == "night shift"


def test_a_collector_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """In one line, however often it is tried; the SDK's own lines of several exports are not shown."""
    monkeypatch.setattr(otlp, "_EVERY", 50)
    told: list[str] = []
    with exporting("http://127.0.0.1:port", lambda: JOB, told.append):
        time.sleep(0.5)
    (line,) = told
    assert line.startswith("--otlp http://127.0.0.1:port: the metrics do not arrive, the job goes on: ")
    assert capfd.readouterr() == ("", "")


def test_without_the_sdk_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with (
        pytest.raises(PluginError, match=r"pip install 'unilaunch\[otlp\]'"),
        exporting("http://x", lambda: JOB, print),
    ):
        pass
