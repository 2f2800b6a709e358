"""A model's curves for TensorBoard: what is in the event file is what rank 0 has recorded."""

import struct
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from unilaunch.errors import OutputError, PluginError, SpecError
from unilaunch.interfaces.observer import Observed
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.job.plan import make_plan
from unilaunch.observers import points
from unilaunch.observers.tensorboard import TensorBoard
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task

LAYOUT = ReportLayout(step="epoch", series="epochs.jsonl")


def _scalars(folder: Path) -> list[tuple[str, int, float, float]]:
    """Return name, step, value and time of what stands in the one event file: records with their length before them."""
    (path,) = folder.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack_from("<Q", data)
        event = Event.FromString(data[12 : 12 + size])
        found += [(one.tag, event.step, one.simple_value, event.wall_time) for one in event.summary.value]
        data = data[16 + size :]
    return sorted(found)


def _writing(folder: Path, find: Callable[[], Path | None] = lambda: None) -> AbstractContextManager[None]:
    job = Observed("log_output", {}, {}, LAYOUT, find, dict, set, print)
    return TensorBoard().observing(str(folder), job)


def test_what_rank_0_records_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the job runs and at its end; each line once, whole lines only, and numbers of steps only."""
    monkeypatch.setattr(points, "_EVERY", 0.01)
    rank, folder = tmp_path / "rank.0", tmp_path / "curves"
    found, looks = list[Path](), list[float]()

    def find() -> Path | None:
        looks.append(time.monotonic())
        return found[0] if found else None

    with _writing(folder, find):
        rank.mkdir()
        series = (rank / "epochs.jsonl").open("a")
        series.write('{"epoch": 1, "time": 10.0, "loss": 0.5}\nnonsense\n[1]\n{"epoch": 2, "ti')
        series.flush()
        found.append(rank)
        looks.clear()
        while len(looks) < 3:  # half a line has been read
            time.sleep(0.01)
        (rank / "events.jsonl").write_text(
            '{"time": 9, "phase": "start"}\n{"time": 11, "epoch": 2, "who": "a", "acc": 1, "loss": 0.25}\n'
        )
        series.write('me": 12.0, "loss": 0.25}\n')
        series.close()
    assert _scalars(folder) == [("acc", 2, 1.0, 11.0), ("loss", 1, 0.5, 10.0), ("loss", 2, 0.25, 12.0)]


def test_what_cannot_be_done_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is a file, a program, and no tensorboardX."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match=r"--observe tensorboard=.*file"),
        _writing(tmp_path / "file"),
    ):
        pass
    task = read_task(LaunchSpec, {"target": "json:loads", "nprocs": "1", "observe": "tensorboard=curves"}, {})
    with pytest.raises(SpecError, match="--observe tensorboard=curves: a function writes its own curves"):
        make_plan(task, {})
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with (
        pytest.raises(PluginError, match=r"pip install 'unilaunch\[tensorboard\]'"),
        _writing(tmp_path),
    ):
        pass
