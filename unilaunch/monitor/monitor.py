"""Decide when a job must end: at its first failure, when no rank makes progress, or in different collectives."""

import time
from collections.abc import Callable, Mapping, Sequence

from unilaunch.folder.failure import Cause, Failure
from unilaunch.interfaces.calls import mixed
from unilaunch.monitor import messages
from unilaunch.monitor.connection import WORRY, is_unanswered
from unilaunch.monitor.inbox import Inbox, RankSeen
from unilaunch.monitor.stacks import group
from unilaunch.monitor.verdict import Verdict, is_consequence, judge
from unilaunch.monitor.verdict import ranks as name_ranks
from unilaunch.record import Record, field, replace

#: The exit code of a job that has stalled, as with timeout(1).
STALLED = 124
#: Seconds after a failure in which messages of other ranks are still read, before all ranks are ended.
SETTLE = 0.3
#: The same, while all reports are consequences of another failure: the cause may not have arrived yet. On several hosts
#: the cause may be a lost host: within these seconds it shows that the host does not answer.
DOUBT, DOUBT_ON_SEVERAL = 1.0, 5.0
#: The same, while all ranks are known to fail in the same way: each rank reports its failure, and ends by itself.
TOGETHER = 10.0
#: Seconds for a rank to connect.
UNHEARD = 10.0
#: Seconds for the first rank, even if the stall timeout is shorter: the ranks import a framework.
START = 30.0
#: Seconds in which the ranks must send their stacks; on a busy machine that can take seconds.
STACKS = 5.0
#: Seconds between two comparisons of the collectives that the ranks have called.
COMPARE = 0.5


class Monitor(Record, frozen=False):
    """Watches the whole job: judges the messages that have arrived, and sends orders to the agents.

    Attributes:
        inbox: Receives the messages.
        size: Number of ranks.
        several: Whether they are on several hosts.
        stall_timeout: Seconds without any progress of any rank after which the job is ended; None: never.
        abort: Whether to end all ranks at the first failure; if not, the job ends with its last rank.
        start_limit: Seconds for the first rank to be heard of, after which the job is ended.
        announce: Called with the verdict before any rank is ordered to end: mpirun may end this process with them.
        tell_saving: Called with the verdict and the ranks that are saving, if the end waits for some.
        lost_patience: Seconds after the loss of a host in which the launcher should notice it too.
        grace: Seconds for a rank whose program saves when another rank has failed.
        verdict: How the job failed; None while no failure is known.
        ending: Whether the ranks have been ordered to end.
        awaiting: Until when the end waits for ranks that are saving; 0 if none is.
        hurried: Whether the launcher ends the ranks and this process itself: the verdict must not wait.
    """

    inbox: Inbox
    size: int
    several: bool
    stall_timeout: float | None
    abort: bool
    start_limit: float = float("inf")
    lost_patience: float = 0.0
    grace: float = 0.0
    announce: Callable[[Verdict], None] = lambda _: None
    tell_saving: Callable[[Verdict, Sequence[int]], None] = lambda *_: None
    verdict: Verdict | None = None
    ending: bool = False
    hurried: bool = False
    awaiting: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    _first: float | None = None
    _asked: float | None = None
    _compared: float = 0.0
    _mixed: Failure | None = None
    _left: bool = False

    @property
    def finished(self) -> bool:
        """Whether every rank has ended."""
        return self._all_heard and not self.inbox.unfinished

    @property
    def _all_heard(self) -> bool:
        """Whether every rank has connected; a rank that never does is not waited for long."""
        return len(self.inbox.ranks) >= self.size or time.monotonic() - self._began > UNHEARD

    @property
    def all_done(self) -> bool:
        """Whether the program of every rank has ended, though some ranks may still wait for others."""
        return not self.inbox.working

    def begin(self) -> None:
        """Count all times from now on: the launcher has been started, for which other nodes may have been awaited."""
        self._began = time.monotonic()

    def look(self) -> None:
        """Judge the messages that have arrived; order the end when it is time."""
        if not self.ending:
            self._look_for_a_failure(time.monotonic())
        if self.ending:
            self._let_agents_leave()

    def _look_for_a_failure(self, now: float) -> None:
        failures = self.failures()
        if failures and self._first is None:
            self._first = now
        if failures and self._is_time(failures, now):
            self.end(self._verdict_on(failures))
        elif not self.inbox.ranks and now - self._began > self.start_limit:
            self.end(Verdict(Failure(Cause.NEVER_BEGAN, _nobody(self.start_limit, several=self.several), 1), 1, ()))
        elif not failures and (mixed := self._find_mixed_calls(now)):
            self._end_with_stacks(mixed, now)
        elif self.stall_timeout and not (failures and self.abort) and not (self.finished and self.inbox.ranks):
            self._look_for_a_stall(now, self.stall_timeout)

    def failures(self) -> list[Failure]:
        """Return the failures that are known, in the order in which they became known."""
        known = (self.inbox.ranks[rank].failure for rank in self.inbox.failed)
        return [failure for failure in known if failure]

    def conclude(self) -> Verdict | None:
        """Return how the job failed, after its end; None if it did not fail."""
        failures = self.failures()
        if self.verdict is None and failures:
            self.verdict = self._verdict_on(failures)
        return self.verdict

    def _verdict_on(self, failures: list[Failure]) -> Verdict:
        """Return the verdict; of a lost peer with the ranks that had ended well: it may be one of them."""
        verdict = judge(failures, self.size)
        left = [rank for rank, seen in self.inbox.ranks.items() if seen.has_ended_well]
        return replace(verdict, left=sorted(left)) if verdict.first.cause is Cause.LOST_PEER else verdict

    def end(self, verdict: Verdict) -> None:
        """Order every rank to end, with the job's exit code."""
        self.verdict = verdict
        self.ending = True
        self.announce(verdict)
        self.inbox.end(messages.End(verdict.exit_code, self.grace))

    def _let_agents_leave(self) -> None:
        """Let the agents exit once every rank has ended: a launcher kills the ranks that are left at the first exit."""
        saving = [rank for rank, seen in self.inbox.ranks.items() if seen.saving and not seen.is_over]
        if self.verdict and self.grace and saving and not self.awaiting:
            self.awaiting = time.monotonic() + self.grace
            self.tell_saving(self.verdict, saving)
            self.inbox.tell_all(messages.Leave(self.verdict.exit_code, self.grace))
        if self.verdict and self.finished and not self._left:
            self._left = True
            self.inbox.tell_all(messages.Leave(self.verdict.exit_code))

    def _is_time(self, failures: list[Failure], now: float) -> bool:
        if self.finished:
            return True
        if not self.abort:  # a failed rank may still wait for its threads
            return self._all_heard and self.inbox.working <= set(self.inbox.failed)
        since = now - (self._first or now)
        if self.hurried:  # mpirun shows the output of this process only for some tenths of a second more
            return not all(map(is_consequence, failures)) or since > SETTLE
        is_host_lost = since < self.lost_patience and self._verdict_on(failures).first.cause is Cause.LOST_HOST
        if is_host_lost or (since < TOGETHER and any(map(_is_of_all, failures))):
            return False
        doubtful = all(is_consequence(failure) or failure.together for failure in failures)
        patience = (DOUBT_ON_SEVERAL if self.several else DOUBT) if doubtful else SETTLE
        return since > patience and not (doubtful and self._may_have_lost_a_host(since))

    def _may_have_lost_a_host(self, since: float) -> bool:
        """Return whether a host does not answer; it counts as lost, with a failure of its own, in its time to answer.

        After that time no host is awaited: of thousands of connections one can always look silent, because the kernel
        drops probes that it sends in one moment.
        """
        known = self.inbox.host_timeout + WORRY  # with that, also where something was sent to the host before the doubt
        return since <= known and any(is_unanswered(one.connection) for one in self.inbox.agents)

    def _find_mixed_calls(self, now: float) -> Failure | None:
        """Return the failure of a job whose ranks are in different collectives; None if it is not known."""
        if now - self._compared > COMPARE and self._mixed is None:
            self._compared = now
            message = find_mixed_calls({rank: seen.pace for rank, seen in self.inbox.ranks.items()})
            self._mixed = Failure(Cause.MIXED_CALLS, message, 1, final=True) if message else None
        return self._mixed

    def _look_for_a_stall(self, now: float, patience: float) -> None:
        ranks = self.inbox.ranks
        moved = max(self._began, self.inbox.moved)
        if now - moved < (patience if ranks else max(patience, START)):
            self._asked = None
        else:
            what = "made progress" if ranks else "been heard of"
            message = f"no rank has {what} for {now - moved:.0f} s{_awaited(ranks)}"
            self._end_with_stacks(Failure(Cause.STALLED, message, STALLED), now)

    def _end_with_stacks(self, failure: Failure, now: float) -> None:
        """End the job, which hangs, once the ranks have sent their stacks, or after some seconds."""
        if self._asked is None:
            self._asked = now
            self.inbox.request_stacks()
            return
        stacks, silent = self.inbox.stacks()
        if not silent or now - self._asked > STACKS:
            failures = self.failures()  # without abort: the others may wait for a rank that has failed
            verdict = self._verdict_on(failures) if failures else Verdict(failure, failure.exit_code)
            self.end(replace(verdict, stacks=group(stacks)))


def _nobody(seconds: float, *, several: bool) -> str:
    """Return in words that no rank has begun, and what to do."""
    what = f"no rank has begun within {seconds:g} s (--timeout)"
    doubt = (
        ": the other hosts must reach this one at every TCP port of its net.ipv4.ip_local_port_range, unilaunch doctor "
        "says which do not"
    )
    return what + doubt * several


def _is_of_all(failure: Failure) -> bool:
    """Return whether every rank fails in this way; Ctrl-C in one program need not be known to the others."""
    return failure.together and failure.cause is not Cause.ENDED_FROM_OUTSIDE


def _awaited(seen: Mapping[int, RankSeen]) -> str:
    """Return who is awaited in a collective, and by whom, in words; "" if that is not known."""
    working = [rank for rank, one in seen.items() if one.is_working]
    waiting = [rank for rank in working if seen[rank].pace.waiting]
    awaited = [rank for rank in working if not seen[rank].pace.waiting]
    if not waiting or not awaited:
        return ""
    return f": {name_ranks(awaited)} {'are' if len(awaited) > 1 else 'is'} awaited by {name_ranks(waiting)}"


def find_mixed_calls(seen: Mapping[int, messages.Progress]) -> str:
    """Return in one line who is in which collective, where calls with the same number differ; "" if none do.

    The ranks' newest calls become known at different times: only numbers that are known of several ranks count.
    """
    first: dict[int, tuple[int, int]] = {}  # of each call: its kind, and a rank that has made it
    for rank, progress in sorted(seen.items()):
        kinds = bytes.fromhex(progress.kinds)
        for number, kind in enumerate(kinds, progress.calls - len(kinds) + 1):
            others_kind, other = first.setdefault(number, (kind, rank))
            if others_kind != kind:
                return _describe_mixed(seen, number, {kind: rank, others_kind: other})
    return ""


def _describe_mixed(seen: Mapping[int, messages.Progress], number: int, kinds: Mapping[int, int]) -> str:
    alike: dict[int, list[int]] = {}
    for rank, progress in seen.items():
        place = number - progress.calls - 1
        known = bytes.fromhex(progress.kinds)
        if -len(known) <= place < 0 and known[place] in kinds:
            alike.setdefault(known[place], []).append(rank)
    groups = sorted(alike.items(), key=lambda item: min(item[1]))
    names = next(filter(None, (progress.purposes for progress in seen.values())), "").split(",")
    return mixed(
        [(f"{name_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'}", kind, number, "") for kind, ranks in groups],
        names,
    )
