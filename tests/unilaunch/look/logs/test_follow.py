"""The log lines of a job that still runs."""

import os
import threading
import time
from pathlib import Path
from socket import gethostname

import pytest

from unilaunch.folder.claim import MARKER, Marker, claim
from unilaunch.look.logs import ending
from unilaunch.look.logs.follow import follow, read
from unilaunch.look.logs.layouts import Stream


def test_output_that_an_agent_writes_late_is_read(tmp_path: Path) -> None:
    """The ranks record their end themselves; their last lines come through the agent."""
    path, is_written = tmp_path / "stdout", threading.Event()
    path.write_text("first\n")

    def write_late() -> None:
        time.sleep(1.5)
        with path.open("a") as file:
            file.write("last\n")
        is_written.set()

    looks = iter([False])
    agent = threading.Thread(target=write_late)
    agent.start()
    stream = Stream(0, "stdout", path, "", 0.0, None)
    lines = [line.text for line in follow(lambda: next(looks, True), lambda: [stream], is_written.is_set) if line]
    agent.join()
    assert lines == ["first", "last"]


def test_a_job_whose_agents_were_killed_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its ranks has recorded an end; a job of another host may go on."""
    monkeypatch.setattr(ending, "_LEFT", 0.2)
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").write_text("first\n")
    held = claim(tmp_path, "run")
    assert isinstance(held, int)
    (tmp_path / MARKER).write_text(Marker("run", gethostname()).text)
    has_ended = ending.Ending(tmp_path)
    time.sleep(0.3)
    assert not has_ended()
    os.close(held)
    time.sleep(0.3)
    assert has_ended()
    (tmp_path / MARKER).write_text(Marker("run", "node7").text)
    has_ended = ending.Ending(tmp_path)
    time.sleep(0.3)
    assert not has_ended()


def test_a_file_that_is_moved_aside_after_it_was_found_ends_nothing(tmp_path: Path) -> None:
    """A new run moves the folder of a rank, at any moment."""
    stays = tmp_path / "stays"
    stays.write_text("first\n")

    class Moved(type(stays)):  # type: ignore[misc]
        """Is there when it is looked at, and not when it is opened."""

        def stat(self, **_: bool) -> os.stat_result:
            return stays.stat()

    streams = [Stream(0, "stdout", stays, "", 0.0, None), Stream(1, "stdout", Moved(tmp_path, "moved"), "", 0.0, None)]
    looks = iter([False, True])
    assert [line.text for line in follow(lambda: next(looks), lambda: streams) if line] == ["first"]
    assert [line.text for line in read(streams)] == ["first"]
