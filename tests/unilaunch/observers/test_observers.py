"""What observers get: live metrics a real OpenTelemetry collector, a model's curves TensorBoard's event file."""

import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from jobs.collector import collecting, read_points
from jobs.ports import free_ports
from unilaunch.errors import OutputError, PluginError
from unilaunch.interfaces.observer import Observed
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.observers import otlp, points
from unilaunch.observers.otlp import exporting
from unilaunch.observers.tensorboard import TensorBoard

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
    log = tmp_path / "log"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night shift")
    with collecting(log) as url, exporting(url, lambda: JOB, print):
        pass
    sender, found = read_points(log)
    assert sender == "night shift"
    assert found["unilaunch.value"] == [({"rank": "0", "host": "node0", "name": "loss"}, 0.25)]
    assert found["unilaunch.received_bytes_total"] == [({"rank": "0", "host": "node0"}, 4096)]
    assert found["unilaunch.restarts_total"] == [({}, 2)]
    assert re.search(r"unilaunch\.restarts_total\n(.*\n){3}.*IsMonotonic: true", log.read_text())


def test_an_unreachable_collector(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It is named once, without the SDK's own lines, and does not delay the end; a silent one gets its 3 seconds."""
    monkeypatch.setattr(otlp, "_EVERY", 50)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port, runs, most, why in (
            ("port", 0.5, 4, ""), (free_ports(1)[0], 0, 1, "Connection refused"),
            (silent.getsockname()[1], 0, 4, "the last figures got no answer"),
        ):  # fmt: skip
            told: list[str] = []
            with exporting(f"http://127.0.0.1:{port}", lambda: JOB, told.append):
                time.sleep(runs)
                begin = time.monotonic()
            assert time.monotonic() - begin < most
            (line,) = told
            assert f"--observe otlp=http://127.0.0.1:{port}: the metrics do not arrive, the job goes on: " in line
            assert why in line
    assert capfd.readouterr() == ("", "")


def _writing(folder: Path, find: Callable[[], Path | None] = lambda: None) -> AbstractContextManager[None]:
    layout = ReportLayout(step="epoch", series="epochs.jsonl")
    return TensorBoard().observing(str(folder), Observed("log_output", {}, {}, layout, find, dict, set, print))


def test_what_rank_0_records_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the job runs and at its end; each line once, whole lines only, and numbers of steps only."""
    monkeypatch.setattr(points, "_EVERY", 0.01)
    rank, looks, found = tmp_path / "rank.0", list[float](), list[tuple[str, int, float, float]]()

    def find() -> Path | None:
        looks.append(time.monotonic())
        return rank if rank.exists() else None

    with _writing(tmp_path / "curves", find):
        rank.mkdir()
        with (rank / "epochs.jsonl").open("a") as series:
            series.write('{"epoch": 1, "time": 10.0, "loss": 0.5}\nnonsense\n[1]\n{"epoch": 2, "ti')
            series.flush()
            looks.clear()
            while len(looks) < 3:  # half a line has been read
                time.sleep(0.01)
            (rank / "events.jsonl").write_text(
                '{"time": 9, "phase": "start"}\n{"time": 11, "epoch": 2, "who": "a", "acc": 1, "loss": 0.25}\n'
            )
            series.write('me": 12.0, "loss": 0.25}\n')
    (path,) = (tmp_path / "curves").glob("events.out.tfevents.*")
    data = path.read_bytes()
    while data:  # records with their length before them
        (size,) = struct.unpack_from("<Q", data)
        event = Event.FromString(data[12 : 12 + size])
        found += [(one.tag, event.step, one.simple_value, event.wall_time) for one in event.summary.value]
        data = data[16 + size :]
    assert sorted(found) == [("acc", 2, 1.0, 11.0), ("loss", 1, 0.5, 10.0), ("loss", 2, 0.25, 12.0)]


def test_what_cannot_be_done_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"--observe tensorboard=.*file"), _writing(tmp_path / "file"):
        pass
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(PluginError, match=r"pip install 'unilaunch\[tensorboard\]'"), _writing(tmp_path):
        pass
