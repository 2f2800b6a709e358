"""The attempts of a job: when it is started again, and the plan after the loss of a host."""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from command_line import find_mpirun, launch_options, write_programs
from unilaunch.errors import SpecError
from unilaunch.folder.failure import Cause, Failure
from unilaunch.folder.result import LaunchResult
from unilaunch.job import attempt, attempts, login
from unilaunch.job.api import Job
from unilaunch.job.attempt import Caller
from unilaunch.job.attempts import plan_again
from unilaunch.job.plan import Plan, make_plan
from unilaunch.job.stop import UserSignals
from unilaunch.spec.hostfile import Host
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task

SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_TASKS_PER_NODE": "2(x2),3"}


def _plan(words: str, environ: Mapping[str, str]) -> Plan:
    mpirun = find_mpirun("/usr/bin", str(Path(sys.executable).parent))
    given = launch_options(f"--mpirun {mpirun} --allow-run-as-root {words}")
    return make_plan(read_task(LaunchSpec, given, environ), environ)


@pytest.mark.parametrize(("words", "environ", "lost", "left"), [
    # The user has named no hosts; those that are left have room for five of seven ranks, or for all of four.
    ("", {"LSB_HOSTS": "n0 n0 n1"}, ["n1"], ["n0", "n0"]), ("", SLURM, ["n1"], ["n0", "n0", "n2", "n2", "n2"]),
    ("-n 4", SLURM, ["n1"], ["n0", "n0", "n2", "n2"]),
    ("-n 4 -H a:2,b:2 --mpi-arg --rank-by --mpi-arg node", {}, ["b"], ["a", "a"]),  # only mpirun knew it
    # A lost host that is none of the job's names, all of its hosts, hosts that only mpirun reads.
    ("-n 2 -H a:2,b:2 --map-by seq", {}, ["b.example.org"], None), ("-n 2 -H a:2,b:2", {}, ["a", "b"], None),
    ("-n 2", {"PBS_NODEFILE": "nodes"}, ["b"], None),
])  # fmt: skip
def test_a_lost_host_is_left_out(
    words: str, environ: Mapping[str, str], lost: Sequence[str], left: list[str] | None, tmp_path: Path
) -> None:
    plan = _plan(f"--elastic {words}", environ)
    if left is None:
        with pytest.raises(SpecError, match=f"--elastic: {lost[0]}.* cannot be left out of the hosts"):
            plan_again(plan, lost, environ, tmp_path / "left")
    else:
        assert [row.host for row in plan_again(plan, lost, environ, tmp_path / "left").rows] == left


#: The ends of an attempt that was well and of one whose mpirun started nothing; and what is said of a host.
WELL, NOT_STARTED = (LaunchResult(code, (), None, Path(), None) for code in (0, 255))
SILENT = {"b": "b: ssh b: no route"}


def _run(
    words: str, answers: list[LaunchResult], closed: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any]:
    """Let a job's attempts have these ends, the last one or none a good one, and its hosts be found so in between."""
    starts, looks = (
        create_autospec(real, side_effect=ends)
        for real, ends in ((attempt.run_attempt, answers), (login.closed_hosts, closed))
    )
    monkeypatch.setattr(attempts, "run_attempt", starts)
    monkeypatch.setattr(login, "closed_hosts", looks)
    done = attempts.run_attempts(_plan(words, {}), {}, Caller(UserSignals(), attended=True))
    assert done.returncode == answers[starts.call_count - 1].returncode
    return starts, looks


@pytest.mark.parametrize(("options", "tries", "hosts"), [("", 3, ["a", "b"]), ("--elastic", 1, ["a"])])
def test_a_restart_waits_for_a_host_that_does_not_answer_or_leaves_it_out(
    options: str, tries: int, hosts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for one that was lost before its agent was heard of; and after a restart for which mpirun did not start."""
    answers = [LaunchResult(1, (), Failure(Cause.LOST_LAUNCHER, "gone", 1), Path(), None), NOT_STARTED, WELL]
    closed = [SILENT, {}] if options else [*[SILENT] * (tries - 1), {}, {}]
    monkeypatch.setattr(attempts, "_PAUSE", 0.0)
    monkeypatch.setattr(login, "check_logins", create_autospec(login.check_logins))
    starts, looks = _run(f"-H a:1,b:1 --max-restarts 2 {options}", answers, closed, monkeypatch)
    assert looks.call_count == tries + 1
    assert [host.name for host in starts.call_args.args[0].request.hosts] == hosts
    said = capsys.readouterr().err
    assert said.count("the restart waits for b, for at most 300 s") == (not options)
    assert "restart 2 of 2" in said


@pytest.mark.parametrize(("cause", "starts"), [(Cause.NEVER_BEGAN, 2), (Cause.CANNOT_START, 1), (None, 1)])
def test_ranks_that_never_began_are_tried_again(
    cause: Cause | None, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow host may come at the next attempt; a program that cannot start, or mpirun itself, fails again."""
    failed = LaunchResult(1, (), Failure(cause, "", 1) if cause else None, Path(), None)
    started, _ = _run("-n 1 --max-restarts 1", [failed, WELL], [{}, {}], monkeypatch)
    assert started.call_count == starts


def test_a_host_that_does_not_answer_is_why_mpirun_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, and the job is worth a restart, though mpirun has started no rank."""
    starts, _ = _run("-H a:1,b:1 --max-restarts 1", [NOT_STARTED, WELL], [{}, SILENT, {}], monkeypatch)
    assert starts.call_count == 2
    assert "unilaunch: b: ssh b: no route; to check all hosts: unilaunch doctor -H a:1,b:1" in capsys.readouterr().err


def test_a_second_cancel_is_no_echo() -> None:
    """A signal that comes twice at once is one: timeout(1) sends it so."""
    (job := Job.__new__(Job))._caller = Caller(signals := UserSignals(), attended=False)
    for send, is_second in ((signals.note, False), (signals.note, False), (lambda _: job.cancel(), True)):
        send(signal.SIGTERM)
        assert signals.again == is_second


def test_a_start_up_file_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ssh gives up by itself, and sooner, where nobody answers at the port."""
    write_programs(tmp_path, ssh="exec sleep 60")
    monkeypatch.setattr(login, "_PATIENCE", 0.3)
    (said,) = login.log_in([Host(name="there", slots=1, user="me")], [f"{tmp_path}/ssh"]).values()
    assert re.match(r"there: ssh connects, and no command runs within .*Try: ssh me@there true$", said)
