"""Start a job that has been planned, wait for its end, and report it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import gethostname
from types import FrameType

from unilaunch.job.live import Live
from unilaunch.job.plan import Plan
from unilaunch.output.claim import release
from unilaunch.output.failure import signal_name
from unilaunch.output.folder import keep_reports, rank_folder, write_report
from unilaunch.output.result import LaunchResult, RankResult
from unilaunch.watch.inbox import HOST_LOST, Inbox, listen
from unilaunch.watch.line import VARIABLE
from unilaunch.watch.verdict import Verdict, is_consequence, show
from unilaunch.watch.watch import DOUBT, DOUBT_ON_SEVERAL, Watch

#: Seconds that mpirun has to end the ranks once it is told to, or once they have all gone.
GRACE = 10.0
#: Seconds in which the guards end their ranks when they are told to; mpirun takes longer.
PROMPT = 2.0
_TICK = 0.2


def start(plan: Plan, environ: Mapping[str, str]) -> LaunchResult:
    """Start the job, pass its output on, wait, and return how it ended.

    Ctrl-C, SIGTERM and SIGHUP end the job, once: mpirun is told to end the ranks, and must not hear it twice.

    Args:
        plan: What to start.
        environ: The process's environment.
    """
    hosts = list(dict.fromkeys(row.host for row in plan.rows if row.host != "?")) if plan.several else []
    spec = plan.task.spec
    listening = listen(hosts, several=plan.several)
    with Inbox(listening.listener, listening.secret) as inbox, _signals() as asked:
        watch = Watch(inbox, len(plan.rows), plan.several, spec.stall_timeout, spec.abort)
        live = Live(shown=sys.stderr.isatty())
        pipe = subprocess.PIPE if live.shown else None
        environ = {**environ, VARIABLE: listening.where}
        with (
            subprocess.Popen(
                _with_inbox(plan), env=environ, start_new_session=True, stdout=pipe, stderr=pipe
            ) as process,
            live.passing(process.stdout, process.stderr),
        ):
            returncode = _wait(process, watch, asked, live)
        _hear_out(watch)
        verdict = None if asked.number else _judge(plan, watch, returncode)
        result = _collect(plan, inbox, _exit_code(returncode, verdict, asked.number), verdict)
        result = replace(result, interrupted=bool(asked.number))
    if verdict:
        _report(plan, verdict, _runs(inbox))
    return result


def _with_inbox(plan: Plan) -> list[str]:
    """Return the command line, with the way to the inbox for ranks on other hosts."""
    line = list(plan.line)
    if plan.several and plan.mpirun.launcher == "Open MPI":
        line[1:1] = ["-x", VARIABLE]
    return line


@dataclass
class _Asked:
    """Whether the user asked for the end, by which signal."""

    number: int = 0
    told: bool = field(default=False)


@contextmanager
def _signals() -> Iterator[_Asked]:
    asked = _Asked()

    def note(number: int, _: FrameType | None) -> None:
        asked.number = asked.number or number

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        before = {number: signal.signal(number, note) for number in caught}
    except ValueError:  # not the main thread: whoever runs it there handles its signals
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: "subprocess.Popen[bytes]", watch: Watch, asked: _Asked, live: Live) -> int:
    """Return mpirun's exit code, once it has ended by itself or has been made to."""
    deadline = terminate_at = float("inf")
    had_ranks = False
    while process.poll() is None:
        watch.inbox.take(_TICK)
        live.follow(watch.inbox.ranks)
        if not asked.number:
            watch.look()
        if watch.ending:
            deadline = min(deadline, time.monotonic() + (PROMPT if watch.inbox.silent else GRACE))
        if asked.number and not asked.told:
            asked.told = True
            watch.inbox.tell_all(end=128 + asked.number)
            deadline = time.monotonic() + GRACE
            terminate_at = time.monotonic() + (PROMPT if watch.inbox.connected else 0.0)
        if time.monotonic() > terminate_at:
            terminate_at = float("inf")
            process.terminate()  # once: at a second SIGTERM mpirun leaves its ranks behind
        children = _has_children(process.pid)
        had_ranks |= children
        if had_ranks and not children:  # Open MPI can hang when all ranks end at once
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)  # its ssh too
    return process.returncode


def _hear_out(watch: Watch) -> None:
    """Hear the last words of ranks that have outlived mpirun: they end by themselves, at the latest when we hang up.

    Nothing is sent: that would put off the moment at which the silence of a host is noticed.
    """
    deadline = time.monotonic() + (DOUBT_ON_SEVERAL if watch.several else DOUBT)
    watch.inbox.take(0)
    while watch.inbox.connected and not watch.finished and time.monotonic() < deadline:
        watch.inbox.take(_TICK)


def _judge(plan: Plan, watch: Watch, returncode: int) -> Verdict | None:
    """Return how the job failed; None if it did not, or if mpirun has said all there is to say."""
    verdict = watch.conclude()
    if returncode < 0 and not watch.ending and (verdict is None or is_consequence(verdict.first)):
        message = f"{plan.mpirun.path} was killed by {signal_name(-returncode)}"
        failure = {"rank": None, "host": gethostname(), "error": "Mpirun", "message": message}
        return Verdict(failure | {"exit_code": 128 - returncode}, 128 - returncode, verdict.everyone if verdict else ())
    return verdict


def _has_children(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").strip())
    except OSError:
        return True


def _collect(plan: Plan, inbox: Inbox, returncode: int, verdict: Verdict | None) -> LaunchResult:
    """Return how the job ended; what a rank without a shared file system has told is written beside the others'."""
    root = plan.task.spec.output_dir
    size = len(plan.rows)
    ranks = []
    for row in plan.rows:
        said = inbox.ranks.get(row.rank, {})
        ranks.append(
            RankResult(
                rank=row.rank,
                host=said.get("host", row.host),
                device=said.get("device", row.device),
                returncode=said.get("exit_code"),
                log_dir=rank_folder(root, row.rank, size),
                value=said.get("value"),
            )
        )
    keep_reports(root, size, inbox.ranks)
    for run in _runs(inbox):
        release(root, run)
    result = inbox.ranks.get(0, {}).get("result")
    lost = dict.fromkeys(plan.rows[rank].host for rank, why in inbox.silent.items() if HOST_LOST in why)
    return LaunchResult(returncode, tuple(ranks), verdict.first if verdict else None, root, result, tuple(lost))


def _exit_code(returncode: int, verdict: Verdict | None, asked: int) -> int:
    if asked:
        return 128 + asked
    if verdict:
        return verdict.exit_code
    return 128 - returncode if returncode < 0 else returncode


def _runs(inbox: Inbox) -> set[str]:
    """Return the run that the ranks say they are of, once they have an output folder."""
    return {said["run"] for said in inbox.ranks.values() if "run" in said}


def _report(plan: Plan, verdict: Verdict, runs: set[str]) -> None:
    """Show and keep what the job came to; what all ranks refused alike, rank 0 has said."""
    root = plan.task.spec.output_dir
    for run in runs:
        write_report(root, run, verdict.as_json(), rank_folder(root, 0, len(plan.rows)))
    if not verdict.first.get("together"):
        unseen = bool(verdict.first["rank"]) and plan.task.spec.console == "rank0"
        sys.stderr.write(show(verdict, traceback=unseen))
