"""A user who looks into a job or at a launcher gets an answer, or one line that says why there is none."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from unilaunch.errors import InputError
from unilaunch.folder.claim import MARKER, Marker, claim
from unilaunch.folder.failure import Cause, Failure, describe_exit
from unilaunch.folder.files import write_failure
from unilaunch.folder.folder import SOCKET
from unilaunch.look import run_folder
from unilaunch.look.explain import explain
from unilaunch.look.inspection import StatusCommand, StatusSpec, ask
from unilaunch.look.logs import first_failure
from unilaunch.look.run_folder import Ending
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox, RankSeen, RankState
from unilaunch.monitor.inspection import Inspection
from unilaunch.monitor.monitor import Monitor
from unilaunch.monitor.reports import keep_reports
from unilaunch.monitor.verdict import judge
from unilaunch.record import replace
from unilaunch.spec.run_spec import RunSpec

HERE = socket.gethostname()
Shown = pytest.CaptureFixture[str]


def _ranks(folder: Path, *events: str) -> None:
    for rank, text in enumerate(events):
        (folder / f"rank.{rank}").mkdir()
        (folder / f"rank.{rank}" / "events.jsonl").write_text(f"{text}\n")


def test_a_monitor_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `launch` that is paused: the kernel accepts the connection, and no process reads the request."""
    monkeypatch.setattr("unilaunch.look.inspection._ANSWER", 0.1)
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(SOCKET)
        listener.listen(1)
        with pytest.raises(InputError, match=r"the job's monitor does not answer within 0.1 s: if launch is paused"):
            ask(tmp_path, "/status")


def test_a_job_that_has_ended_has_the_fields_of_one_that_runs(tmp_path: Path, capsys: Shown) -> None:
    """For programs that read the JSON; of hosts with other file systems `launch` keeps how their ranks ended."""
    inbox = Inbox(listen([], several=False, host_timeout=5.0))
    for rank in range(2):
        inbox.ranks[rank] = RankSeen(
            run="a run", host=f"node{rank}", device="cpu", exit_code=0, state=RankState.EXITED, moved=1.0
        )
    running = Inspection(Monitor(inbox, 2, False, None, True), tmp_path, None).snapshot()
    inbox.close()
    assert running["ranks"][0]["idle_seconds"] is None  # nobody waits for its progress
    keep_reports(tmp_path, 2, inbox.ranks)
    StatusCommand().run(StatusSpec(folder=tmp_path, as_json=True))
    ended = json.loads(capsys.readouterr().out)
    assert ended.keys() == running.keys() | {"verdict"}
    assert ended["ranks"][0].keys() == running["ranks"][0].keys()
    assert ended["run"] == "a run"
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    head, _, first, _ = capsys.readouterr().out.splitlines()
    assert (head, first.split()[:6]) == ("done: 2 ranks", ["0", "node0", "cpu", "exit", "code", "0"])


@pytest.mark.parametrize(("cause", "code", "state"), [
    (Cause.ENDED_FROM_OUTSIDE, 75, "stopped"),  # a model that has saved
    (Cause.ENDED_FROM_OUTSIDE, 143, "stopped"),  # by a scheduler, or with a bare mpirun
    (Cause.EXIT, 75, "failed"),  # a script's own code
])  # fmt: skip
def test_a_job_that_was_stopped(cause: Cause, code: int, state: str, tmp_path: Path, capsys: Shown) -> None:
    """The agents hold the folder's lock for a moment after mpirun has ended."""
    _ranks(tmp_path, '{"time": 1.0, "phase": "program"}')
    write_failure(tmp_path / "rank.0", Failure(cause, "its end", code, rank=0))
    held = claim(tmp_path, "a run")
    assert isinstance(held, int)
    threading.Timer(0.5, os.close, [held]).start()
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    assert capsys.readouterr().out.startswith(f"{state}: 1 rank: ")


def test_a_job_of_another_host_may_still_run(tmp_path: Path, capsys: Shown) -> None:
    """Not every file system shares locks between hosts: a login node knows an end by the ranks' records only."""
    _ranks(tmp_path, '{"time": 1.0, "phase": "end", "exit_code": 0}', '{"time": 1.0}')
    (tmp_path / MARKER).write_text(Marker("a run", "node7").text)
    with pytest.raises(InputError, match=r"that this host can reach; if one runs on other hosts, look from node7"):
        StatusCommand().run(StatusSpec(folder=tmp_path))
    (tmp_path / MARKER).write_text(Marker("a run", HERE).text)
    assert StatusCommand().run(StatusSpec(folder=tmp_path)) == 0
    assert capsys.readouterr().out.startswith("ended: 2 ranks")


def test_a_job_whose_agents_were_killed_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its ranks has recorded an end; a job of another host may go on."""
    monkeypatch.setattr(run_folder, "_LEFT", 0.2)
    _ranks(tmp_path, "")
    held = claim(tmp_path, "run")
    assert isinstance(held, int)
    for host, ended in ((HERE, False), (HERE, True), ("node7", False)):
        (tmp_path / MARKER).write_text(Marker("run", host).text)
        has_ended = Ending(tmp_path)
        time.sleep(0.3)
        assert has_ended() == ended
        if not ended and host == HERE:
            os.close(held)


def test_the_rank_that_lost_a_peer_is_not_the_first(tmp_path: Path) -> None:
    """Though it noted its failure before the rank that crashed; a text from a rank controls no terminal."""
    lost = Failure(Cause.LOST_PEER, "Connection closed by peer", 1, error="RuntimeError", rank=0, host="a", time=100.0)
    crashed = replace(describe_exit(-11), rank=1, host="b\x1b[2J", time=100.4, log="rank.1/stderr")
    assert first_failure(tmp_path) == ""
    _ranks(tmp_path, "", "")
    for failure in (lost, crashed):
        write_failure(tmp_path / f"rank.{failure.rank}", failure)
    assert (
        first_failure(tmp_path)
        == r"rank 1 on b\x1b[2J failed first: killed by SIGSEGV (exit code 139); its log is rank.1/stderr"
    )
    (tmp_path / "report.json").write_text(json.dumps(judge([crashed]).as_json() | {"verdict": "rank 1: \x1b[2J"}))
    assert first_failure(tmp_path) == r"rank 1: \x1b[2J; its log is rank.1/stderr"


OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
RANKS = dict(zip(OPEN_MPI, "0402", strict=True))


@pytest.mark.parametrize(("threads", "environ", "lines"), [
    (None, {"OMP_NUM_THREADS": "7", "MASTER_ADDR": "elsewhere"},
     ["OMP_NUM_THREADS=7  (exported: left as it is)", "MASTER_ADDR=elsewhere  (exported: left as it is)",
      "MKL_NUM_THREADS=7\n"]),  # of OMP_NUM_THREADS, and not exported itself
    # Two of four ranks are here: who else shares the cores, and how many hosts there are, nobody has told yet.
    (None, RANKS, ["GROUP_WORLD_SIZE=(agreed on", "OMP_NUM_THREADS=(agreed on", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=4"]),
    (3, RANKS | {"OMP_NUM_THREADS": "7"}, ["OMP_NUM_THREADS=3\n"]),
    (None, {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "0"},
     ["find each other through MPI, as the launcher has no store"]),
    (None, {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
     ["find each other through a file that only you can read"]),
], ids=["alone", "two of four", "threads", "Flux", "by hand"])  # fmt: skip
def test_what_explain_shows(threads: int | None, environ: dict[str, str], lines: list[str], capsys: Shown) -> None:
    """What torch's ranks would find, and how they find each other; what only all ranks know is not made up."""
    assert explain(RunSpec(threads=threads), environ) == 0
    head, _, shown = capsys.readouterr().out.partition("torch would find\n")
    shown = head + shown.partition(" would find\n")[0]
    assert [line for line in lines if line not in shown] == []
