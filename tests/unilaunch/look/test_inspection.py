"""A user who looks into a job gets an answer, or one line that says why there is none."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from unilaunch.errors import InputError
from unilaunch.folder.claim import MARKER, Marker, claim
from unilaunch.folder.failure import Cause, Failure
from unilaunch.folder.files import write_failure
from unilaunch.folder.folder import SOCKET
from unilaunch.look.inspection import StatusCommand, StatusSpec, ask
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox, RankSeen, RankState
from unilaunch.monitor.inspection import Inspection
from unilaunch.monitor.monitor import Monitor
from unilaunch.monitor.reports import keep_reports


def test_a_monitor_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `launch` that is paused: the kernel accepts the connection, and no process reads the request."""
    monkeypatch.setattr("unilaunch.look.inspection._ANSWER", 0.1)
    folder = os.open(tmp_path, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        listener.listen(1)
        with pytest.raises(InputError, match=r"the job's monitor does not answer within 0.1 s: if launch is paused"):
            ask(tmp_path, "/status")
    os.close(folder)


def test_a_job_on_hosts_with_other_file_systems_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`launch` keeps how their ranks ended."""
    ranks = {rank: RankSeen(run="a run", host=f"node{rank}", device="cpu", exit_code=0) for rank in range(2)}
    keep_reports(tmp_path, 2, ranks)
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    head, _, first, _ = capsys.readouterr().out.splitlines()
    assert (head, first.split()[:6]) == ("done: 2 ranks", ["0", "node0", "cpu", "exit", "code", "0"])


def test_a_job_that_has_ended_has_the_fields_of_one_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For programs that read the JSON."""
    heard = listen([], several=False, host_timeout=5.0)
    inbox = Inbox(heard)
    inbox.ranks[0] = RankSeen(run="a run", host="node0", exit_code=0, state=RankState.EXITED, moved=1.0)
    running = Inspection(Monitor(inbox, 1, False, None, True), tmp_path, None).snapshot()
    inbox.close()
    assert running["ranks"][0]["idle_seconds"] is None  # nobody waits for its progress
    keep_reports(tmp_path, 1, inbox.ranks)
    StatusCommand().run(StatusSpec(folder=tmp_path, as_json=True))
    ended = json.loads(capsys.readouterr().out)
    assert ended.keys() == running.keys() | {"verdict"}
    assert ended["ranks"][0].keys() == running["ranks"][0].keys()
    assert ended["run"] == "a run"


@pytest.mark.parametrize(("cause", "code", "state"), [
    (Cause.ENDED_FROM_OUTSIDE, 75, "stopped"),  # a model that has saved
    (Cause.ENDED_FROM_OUTSIDE, 143, "stopped"),  # by a scheduler, or with a bare mpirun
    (Cause.EXIT, 75, "failed"),  # a script's own code
])  # fmt: skip
def test_a_job_that_was_ended_from_outside_was_stopped(
    cause: Cause, code: int, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "events.jsonl").write_text('{"time": 1.0, "phase": "program"}\n')
    write_failure(tmp_path / "rank.0", Failure(cause, "its end", code, rank=0))
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    assert capsys.readouterr().out.startswith(f"{state}: 1 rank: ")


def test_a_job_whose_agents_still_tidy_up_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They hold the folder's lock for a moment after mpirun has ended."""
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "events.jsonl").write_text('{"time": 1.0, "phase": "end", "exit_code": 0}\n')
    held = claim(tmp_path, "a run")
    assert isinstance(held, int)
    threading.Timer(0.5, os.close, [held]).start()
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    assert capsys.readouterr().out.startswith("done: 1 rank")


def test_a_job_of_another_host_may_still_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not every file system shares locks between hosts: a login node knows an end by the ranks' records only."""
    (tmp_path / MARKER).write_text(Marker("a run", "node7").text)
    for rank, events in enumerate(['{"time": 1.0, "phase": "end", "exit_code": 0}\n', '{"time": 1.0}\n']):
        (tmp_path / f"rank.{rank}").mkdir()
        (tmp_path / f"rank.{rank}" / "events.jsonl").write_text(events)
    with pytest.raises(InputError, match=r"that this host can reach; if one runs on other hosts, look from node7"):
        StatusCommand().run(StatusSpec(folder=tmp_path))
    (tmp_path / MARKER).write_text(Marker("a run", socket.gethostname()).text)
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    assert capsys.readouterr().out.startswith("ended: 2 ranks")
