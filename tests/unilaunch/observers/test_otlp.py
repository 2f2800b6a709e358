"""Live metrics to a real OpenTelemetry collector."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.collector import collecting, read_points
from jobs.ports import free_ports
from unilaunch.observers import otlp
from unilaunch.observers.otlp import exporting

RANK = {
    "rank": 0, "host": "node0", "state": "running", "step": {"kind": "epoch", "number": 7, "total": 9}, "steps": 7,
    "values": {"loss": 0.25}, "busy_seconds": 0.5, "seconds_per_step": 0.1, "received_bytes": 4096,
    "memory_bytes": 1, "idle_seconds": 0.0,
}  # fmt: skip
JOB = {"run": "a", "size": 1, "restarts": 2, "straggler": None, "ranks": [RANK]}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """What still tries to send draws random numbers, which Hypothesis notices in a later test of this process."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), thread


@pytest.mark.system
def test_a_collector_receives_the_figures_at_the_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a sender that the user names."""
    log = tmp_path / "log"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night shift")
    with collecting(log) as url, exporting(url, lambda: JOB, print):
        pass
    sender, points = read_points(log)
    assert sender == "night shift"
    assert points["unilaunch.value"] == [({"rank": "0", "host": "node0", "name": "loss"}, 0.25)]
    assert points["unilaunch.received_bytes_total"] == [({"rank": "0", "host": "node0"}, 4096)]
    assert points["unilaunch.restarts_total"] == [({}, 2)]
    assert re.search(r"unilaunch\.restarts_total\n(.*\n){3}.*IsMonotonic: true", log.read_text())


def test_a_collector_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """In one line, however often it is tried; the SDK's own lines of several exports are not shown."""
    monkeypatch.setattr(otlp, "_EVERY", 50)
    told: list[str] = []
    with exporting("http://127.0.0.1:port", lambda: JOB, told.append):
        time.sleep(0.5)
    (line,) = told
    assert line.startswith("--observe otlp=http://127.0.0.1:port: the metrics do not arrive, the job goes on: ")
    assert capfd.readouterr() == ("", "")


def test_an_unreachable_collector_does_not_delay_the_end() -> None:
    """Its port is closed, or it never answers; that took 3 to 5 seconds."""
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        closed = f"http://127.0.0.1:{free_ports(1)[0]}"
        assert _seconds_of_the_end(closed, told.append) < 1
        assert "Connection refused" in "".join(told)
        with exporting(f"http://127.0.0.1:{silent.getsockname()[1]}", lambda: JOB, told.append):
            pass  # nothing is known of it yet: it gets its 3 seconds
    assert len(told) == 2
    assert told[1].endswith("the job goes on: the last figures got no answer")


def _seconds_of_the_end(url: str, tell: Any) -> float:
    with exporting(url, lambda: JOB, tell):
        begin = time.monotonic()
    return time.monotonic() - begin
