"""A user who looks into a job gets an answer, or one line that says why there is none."""

import os
import socket
import threading
from pathlib import Path

import pytest

from unilaunch.errors import InputError
from unilaunch.inspection import asking
from unilaunch.inspection.status_command import StatusCommand, StatusSpec
from unilaunch.output.claim import claim
from unilaunch.output.folder import SOCKET


def test_a_monitor_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `launch` that is paused: the kernel accepts the connection, and no process reads the request."""
    monkeypatch.setattr(asking, "_PATIENCE", 0.1)
    folder = os.open(tmp_path, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        listener.listen()
        with pytest.raises(InputError, match=r"the job's monitor does not answer within 0.1 s: if launch is paused"):
            asking.ask(tmp_path, "/status")
    os.close(folder)


def test_a_job_whose_agents_still_tidy_up_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They hold the folder's lock for a moment after mpirun has ended."""
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "events.jsonl").write_text('{"time": 1.0, "phase": "end", "exit_code": 0}\n')
    held = claim(tmp_path, "a run")
    assert isinstance(held, int)
    threading.Timer(0.5, os.close, [held]).start()
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    assert capsys.readouterr().out.startswith("done: 1 rank")
