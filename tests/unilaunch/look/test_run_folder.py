"""What a run's output folder tells: whether the run has ended, and which rank failed first."""

import json
import os
import time
from pathlib import Path
from socket import gethostname

import pytest

from unilaunch.folder.claim import MARKER, Marker, claim
from unilaunch.folder.failure import Cause, Failure, describe_exit
from unilaunch.folder.files import write_failure
from unilaunch.look import run_folder
from unilaunch.look.logs import first_failure
from unilaunch.look.run_folder import Ending
from unilaunch.monitor.verdict import judge
from unilaunch.record import replace


def test_a_job_whose_agents_were_killed_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its ranks has recorded an end; a job of another host may go on."""
    monkeypatch.setattr(run_folder, "_LEFT", 0.2)
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").write_text("first\n")
    held = claim(tmp_path, "run")
    assert isinstance(held, int)
    (tmp_path / MARKER).write_text(Marker("run", gethostname()).text)
    has_ended = Ending(tmp_path)
    time.sleep(0.3)
    assert not has_ended()
    os.close(held)
    time.sleep(0.3)
    assert has_ended()
    (tmp_path / MARKER).write_text(Marker("run", "node7").text)
    has_ended = Ending(tmp_path)
    time.sleep(0.3)
    assert not has_ended()


def test_the_rank_that_lost_a_peer_is_not_the_first(tmp_path: Path) -> None:
    """Though it noted its failure before the rank that crashed; a text from a rank controls no terminal."""
    lost = Failure(Cause.LOST_PEER, "Connection closed by peer", 1, error="RuntimeError", rank=0, host="a", time=100.0)
    crashed = replace(describe_exit(-11), rank=1, host="b\x1b[2J", time=100.4, log="rank.1/stderr")
    assert first_failure(tmp_path) == ""
    for failure in (lost, crashed):
        (tmp_path / f"rank.{failure.rank}").mkdir()
        write_failure(tmp_path / f"rank.{failure.rank}", failure)
    (tmp_path / "rank.2").mkdir()
    (tmp_path / "rank.2" / "failure.json").write_text('{"cause": "unheard of"}')
    told = first_failure(tmp_path)
    assert told == r"rank 1 on b\x1b[2J failed first: killed by SIGSEGV (exit code 139); its log is rank.1/stderr"
    (tmp_path / "report.json").write_text(json.dumps(judge([crashed]).as_json() | {"verdict": "rank 1: \x1b[2J"}))
    assert first_failure(tmp_path) == r"rank 1: \x1b[2J; its log is rank.1/stderr"
    (tmp_path / "rank.1" / "stderr").touch()  # of a run whose folder the next one has moved
    assert first_failure(tmp_path).endswith(f"its log is {tmp_path / 'rank.1' / 'stderr'}")
