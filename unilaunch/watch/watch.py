"""When a job is to end: at its first failure, or when nothing moves any more."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unilaunch.watch.inbox import HOST_LOST, Inbox
from unilaunch.watch.stacks import group
from unilaunch.watch.verdict import Verdict, is_consequence, judge

#: What a job that has stalled exits with, as timeout(1) does.
STALLED = 124
#: Seconds after a failure in which the other ranks' words are still heard, before all are ended.
SETTLE = 0.3
#: The same while nobody has told of anything but another rank's end: the cause may still be on its way. On several
#: hosts it may be a host that has gone: within these seconds it shows that it does not answer, and that is waited for.
DOUBT, DOUBT_ON_SEVERAL = 1.0, 5.0
#: Seconds for a rank to call.
UNHEARD = 10.0
#: Seconds in which the ranks are to tell where they stand.
STACKS = 1.5


@dataclass(slots=True)
class Watch:
    """Who watches a job: looks at what has come in, and gives the guards their orders.

    Attributes:
        inbox: Where it comes in.
        size: Number of ranks.
        several: They are on several hosts.
        stall_timeout: Seconds without any progress of any rank after which the job is ended; None: never.
        abort: End all ranks at the first failure; or else when the last one has ended.
        announce: Called with the verdict before any rank is ordered to end: mpirun may end this process with them.
        lost_patience: Seconds after the loss of a host in which the launcher is to notice it too.
        verdict: How the job failed, once it is known that it did.
        ending: The ranks have been ordered to end.
        hurried: The launcher ends the ranks itself, and this process with them: there is no time for doubt.
    """

    inbox: Inbox
    size: int
    several: bool
    stall_timeout: float | None
    abort: bool
    lost_patience: float = 0.0
    announce: Callable[[Verdict], None] = lambda _: None
    verdict: Verdict | None = None
    ending: bool = False
    hurried: bool = False
    _began: float = field(default_factory=time.monotonic)
    _first: float | None = None
    _asked: float | None = None

    @property
    def finished(self) -> bool:
        """No rank is left to wait for; one that was never heard of is not waited for long."""
        ranks, silent = self.inbox.ranks, self.inbox.silent
        all_heard = len(ranks) >= self.size or time.monotonic() - self._began > UNHEARD
        return all_heard and all("exit_code" in said or rank in silent for rank, said in ranks.items())

    @property
    def all_done(self) -> bool:
        """No rank has anything left to do, though some may wait for one that has ended."""
        ranks, silent = self.inbox.ranks, self.inbox.silent
        return all("exit_code" in said or "done" in said or rank in silent for rank, said in ranks.items())

    def look(self) -> None:
        """Judge what has come in; order the end when it is time for it."""
        now = time.monotonic()
        if self.ending:
            return
        failures = self.failures()
        if failures and self._first is None:
            self._first = now
        if failures and self._is_time(failures, now):
            self.end(judge(failures))
        elif self.stall_timeout and not failures and not (self.finished and self.inbox.ranks):
            self._look_for_a_stall(now, self.stall_timeout)

    def failures(self) -> list[dict[str, Any]]:
        """Return the failures that are known, in the order in which they became known."""
        told = [self.inbox.ranks[rank]["failure"] for rank in self.inbox.failed]
        return told + [
            self._lost(rank, why) for rank, why in self.inbox.silent.items() if rank not in self.inbox.failed
        ]

    def conclude(self) -> Verdict | None:
        """Return how the job failed, when all is over; None if it did not."""
        failures = self.failures()
        if self.verdict is None and failures:
            self.verdict = judge(failures)
        return self.verdict

    def end(self, verdict: Verdict) -> None:
        """Order every rank to end, with the job's exit code."""
        self.verdict = verdict
        self.ending = True
        self.announce(verdict)
        self.inbox.tell_all(end=verdict.exit_code)

    def _is_time(self, failures: list[dict[str, Any]], now: float) -> bool:
        if self.finished:
            return True
        if not self.abort:
            return self.all_done
        waits = not self.hurried and now - (self._first or now) < self.lost_patience
        if waits and HOST_LOST in judge(failures).first["message"]:
            return False
        doubtful = all(is_consequence(failure) or failure.get("together") for failure in failures) and not self.hurried
        if doubtful and self.inbox.unanswered:
            return False
        patience = (DOUBT_ON_SEVERAL if self.several else DOUBT) if doubtful else SETTLE
        return now - (self._first or now) > patience

    def _lost(self, rank: int, why: str) -> dict[str, Any]:
        said = self.inbox.ranks[rank]
        progress = said.get("progress") or {}
        return {
            "rank": rank,
            "host": said.get("host", "?"),
            "device": said.get("device", "?"),
            "time": time.time(),
            "phase": progress.get("phase"),
            "progress": progress,
            "exit_code": 137 if "processes" in why else 1,
            "signal": None,
            "error": "Lost",
            "message": f"it fell silent: {why}",
            "traceback": [],
            "last_lines": [],
            "evidence": [],
        }

    def _look_for_a_stall(self, now: float, patience: float) -> None:
        moved = max([self._began, *self.inbox.moved.values()])
        if now - moved < patience:
            self._asked = None
        elif self._asked is None:
            self._asked = now
            for said in self.inbox.ranks.values():
                said.pop("stack", None)  # the answer to an earlier question: that stall ended by itself
            self.inbox.tell_all(stacks=True)
        else:
            told = {rank: said for rank, said in self.inbox.ranks.items() if "stack" in said}
            left = {rank for rank in self.inbox.connected if "exit_code" not in self.inbox.ranks[rank]}
            if left <= set(told) or now - self._asked > STACKS:
                self.end(self._stalled(told, now - moved))

    def _stalled(self, told: dict[int, dict[str, Any]], seconds: float) -> Verdict:
        groups = group(told)
        message = f"no rank has made progress for {seconds:.0f} s"
        failure = {"rank": None, "host": "?", "error": "Stalled", "message": message, "exit_code": STALLED}
        return Verdict(failure, STALLED, (), groups)
