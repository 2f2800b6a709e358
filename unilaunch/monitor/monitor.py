"""When a job is to end: at its first failure, or when nothing moves any more."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from unilaunch.monitor import messages
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.rank_seen import RankSeen
from unilaunch.monitor.stacks import group
from unilaunch.monitor.verdict import Verdict, is_consequence, judge
from unilaunch.output.failure import Cause, Failure

#: What a job that has stalled exits with, as timeout(1) does.
STALLED = 124
#: Seconds after a failure in which the other ranks' words are still heard, before all are ended.
SETTLE = 0.3
#: The same while nobody has told of anything but another rank's end: the cause may still be on its way. On several
#: hosts it may be a host that has gone: within these seconds it shows that it does not answer, and that is waited for.
DOUBT, DOUBT_ON_SEVERAL = 1.0, 5.0
#: Seconds for a rank to call.
UNHEARD = 10.0
#: Seconds for the first one, however short the time is after which ranks count as stalled: they import a framework.
START = 30.0
#: Seconds in which the ranks are to tell where they stand; on a machine with too much to do, that can take seconds.
STACKS = 5.0


@dataclass(slots=True)
class Monitor:
    """Watches the whole job: looks at what has come in, and gives the agents their orders.

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
        all_heard = len(self.inbox.ranks) >= self.size or time.monotonic() - self._began > UNHEARD
        return all_heard and not self.inbox.unfinished

    @property
    def all_done(self) -> bool:
        """No rank has anything left to do, though some may wait for one that has ended."""
        return not self.inbox.working

    def look(self) -> None:
        """Judge what has come in; order the end when it is time for it."""
        now = time.monotonic()
        if self.ending:
            return
        failures = self.failures()
        if failures and self._first is None:
            self._first = now
        if failures and self._is_time(failures, now):
            self.end(judge(failures, self.size))
        elif self.stall_timeout and not failures and not (self.finished and self.inbox.ranks):
            self._look_for_a_stall(now, self.stall_timeout)

    def failures(self) -> list[Failure]:
        """Return the failures that are known, in the order in which they became known."""
        known = (self.inbox.ranks[rank].failure for rank in self.inbox.failed)
        return [failure for failure in known if failure]

    def conclude(self) -> Verdict | None:
        """Return how the job failed, when all is over; None if it did not."""
        failures = self.failures()
        if self.verdict is None and failures:
            self.verdict = judge(failures, self.size)
        return self.verdict

    def end(self, verdict: Verdict) -> None:
        """Order every rank to end, with the job's exit code."""
        self.verdict = verdict
        self.ending = True
        self.announce(verdict)
        self.inbox.end(messages.End(verdict.exit_code))

    def _is_time(self, failures: list[Failure], now: float) -> bool:
        if self.finished:
            return True
        if not self.abort:
            return self.all_done
        since = now - (self._first or now)
        if self.hurried:  # mpirun shows what this process says for some tenths of a second more
            return not all(map(is_consequence, failures)) or since > SETTLE
        if since < self.lost_patience and judge(failures, self.size).first.cause is Cause.LOST_HOST:
            return False
        doubtful = all(is_consequence(failure) or failure.together for failure in failures)
        if doubtful and self.inbox.unanswered:
            return False
        patience = (DOUBT_ON_SEVERAL if self.several else DOUBT) if doubtful else SETTLE
        return since > patience

    def _look_for_a_stall(self, now: float, patience: float) -> None:
        ranks = self.inbox.ranks
        moved = max(self._began, self.inbox.moved)
        if now - moved < (patience if ranks else max(patience, START)):
            self._asked = None
        elif self._asked is None:
            self._asked = now
            for seen in ranks.values():
                seen.stack = None  # the answer to an earlier question: that stall ended by itself
            self.inbox.tell_all(messages.ShowStacks())
        else:
            told = {rank: seen for rank, seen in ranks.items() if seen.stack}
            left = {rank for rank in self.inbox.connected if not ranks[rank].is_over}
            if left <= set(told) or now - self._asked > STACKS:
                what = "made progress" if ranks else "been heard of"
                self.end(_stalled(f"no rank has {what} for {now - moved:.0f} s", told))


def _stalled(what: str, told: dict[int, RankSeen]) -> Verdict:
    failure = Failure(Cause.STALLED, what, STALLED)
    stacks = {rank: seen.stack for rank, seen in told.items() if seen.stack}
    return Verdict(failure, STALLED, (), group(stacks))
