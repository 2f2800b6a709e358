"""Start a job that has been planned, wait for its end, and report it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from unilaunch.errors import UnilaunchError
from unilaunch.job.inbox import Inbox
from unilaunch.job.plan import Plan
from unilaunch.output.folder import keep_report, rank_folder
from unilaunch.output.result import LaunchResult, RankResult

#: Seconds that mpirun has to end the ranks once it is told to, or once they have all gone.
GRACE = 10.0
_TICK = 0.2


def start(plan: Plan, environ: Mapping[str, str]) -> LaunchResult:
    """Start the job, pass its output on, wait, and return how it ended.

    Ctrl-C, SIGTERM and SIGHUP end the job, once: mpirun is told to end the ranks, and must not hear it twice.

    Args:
        plan: What to start.
        environ: The process's environment.
    """
    hosts = list(dict.fromkeys(row.host for row in plan.rows if row.host != "?")) if plan.several else []
    with Inbox(hosts) as inbox, _signals() as asked:
        with subprocess.Popen(
            _with_inbox(plan, inbox), env={**environ, **inbox.variables()}, start_new_session=True
        ) as process:
            returncode = _wait(process, inbox, asked)
        inbox.take(0)
        result = _collect(plan, inbox, returncode, asked.number)
    _report(result)
    return result


def _with_inbox(plan: Plan, inbox: Inbox) -> list[str]:
    """Return the command line, with the way to the inbox for ranks on other hosts."""
    line = list(plan.line)
    if plan.several and plan.mpirun.launcher == "Open MPI":
        line[1:1] = [word for name in inbox.variables() for word in ("-x", name)]
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


def _wait(process: "subprocess.Popen[bytes]", inbox: Inbox, asked: _Asked) -> int:
    """Return mpirun's exit code, once it has ended by itself or has been made to."""
    deadline = float("inf")
    had_ranks = False
    while process.poll() is None:
        inbox.take(_TICK)
        if asked.number and not asked.told:
            asked.told = True
            process.terminate()
            deadline = time.monotonic() + GRACE
        children = _has_children(process.pid)
        had_ranks |= children
        if had_ranks and not children:  # Open MPI can hang when all ranks end at once
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            process.kill()
    return process.returncode


def _has_children(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").strip())
    except OSError:
        return True


def _collect(plan: Plan, inbox: Inbox, returncode: int, asked: int) -> LaunchResult:
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
        if said:
            keep_report(root, row.rank, size, said)
    result = inbox.ranks.get(0, {}).get("result")
    failures = [said["failure"] for said in inbox.ranks.values() if "failure" in said]
    failure = min(failures, key=lambda one: float(one["time"]), default=None)
    return LaunchResult(_exit_code(returncode, failure, asked), tuple(ranks), failure, root, result)


def _exit_code(returncode: int, failure: Mapping[str, Any] | None, asked: int) -> int:
    if asked:
        return 128 + asked
    if failure:
        return int(failure["exit_code"])
    return 128 - returncode if returncode < 0 else returncode


def _report(result: LaunchResult) -> None:
    """Say what failed first, in the rank's own words; nothing when nothing did."""
    failure = result.failure
    if not failure or not result.returncode:
        return
    rank = result.ranks[int(failure["rank"])]
    what = f"{failure['error']}: {failure['message']}"
    who = f"rank {rank.rank} on {rank.host} ({rank.device})"
    lines = [
        f"unilaunch: {who} failed first, with exit code {failure['exit_code']}: {what}",
        f"unilaunch: its log is {rank.log_dir}/stderr on {rank.host}",
    ]
    if (
        rank.rank and failure["exit_code"] != UnilaunchError.exit_code
    ):  # rank 0's has been shown, and a refusal has no traceback
        lines[:0] = ["".join(failure["traceback"]).rstrip()]
    sys.stderr.write("\n".join(lines) + "\n")
