"""The options of `unilaunch logs`."""

import json
import time
from pathlib import Path

import pytest

from unilaunch.folder.failure import Cause, Failure, describe_exit
from unilaunch.folder.files import write_failure
from unilaunch.look.logs.command import _since
from unilaunch.look.logs.ending import first_failure
from unilaunch.record import replace

DAY = 86400.0


def test_a_time_of_day_is_the_last_one() -> None:
    """Today's if it has passed, or else yesterday's."""
    now = time.time()
    for text in ("00:00", "23:59:59.9", time.strftime("%H:%M:%S", time.localtime(now))):
        assert now - DAY - 3601 <= _since(text) <= time.time()  # 3600: the clock may have been changed


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h ago", 7200), ("1.5d", 1.5 * DAY)])
def test_a_duration_is_counted_from_now(text: str, seconds: float) -> None:
    assert abs(time.time() - seconds - _since(text)) < 5


def test_the_rank_that_lost_a_peer_is_not_the_first(tmp_path: Path) -> None:
    """Though it noted its failure before the rank that crashed; a text from a rank controls no terminal."""
    lost = Failure(Cause.LOST_PEER, "Connection closed by peer", 1, error="RuntimeError", rank=0, host="a", time=100.0)
    crashed = replace(describe_exit(-11), rank=1, host="b\x1b[2J", time=100.4, log="rank.1/stderr")
    assert first_failure(tmp_path) == ""
    for failure in (lost, crashed):
        (tmp_path / f"rank.{failure.rank}").mkdir()
        write_failure(tmp_path / f"rank.{failure.rank}", failure)
    told = first_failure(tmp_path)
    assert told == r"rank 1 on b\x1b[2J failed first: killed by SIGSEGV (exit code 139); its log is rank.1/stderr"
    (tmp_path / "report.json").write_text(json.dumps({"verdict": "rank 1: \x1b[2J", "first": {"log": "log"}}))
    assert first_failure(tmp_path) == r"rank 1: \x1b[2J; its log is log"
