"""The process above the ranks of a host: it keeps their output, sees how each ends, and lets nothing outlive them.

A rank leaves a record whatever ends it (an exception, os._exit, SIGKILL, the OOM killer); it ends when its launcher has
gone; and its stacks can be asked for while it hangs. The agents of a job speak with the monitor, each over one
connection: with `unilaunch launch`, or without it with the agent of rank 0, which is the monitor then.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from types import FrameType
from typing import TYPE_CHECKING, Any

from unilaunch.agent.channel import Channel
from unilaunch.agent.output import Stream
from unilaunch.agent.processes import adopt_orphans, kill_children
from unilaunch.agent.rank_process import FAREWELL, RankProcess, State
from unilaunch.limits import allow_files
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Connection
from unilaunch.monitor.messages import NO_RANK, OfAgent, OfRank
from unilaunch.output.failure import Cause, Failure
from unilaunch.output.reports import write_report
from unilaunch.rank.status import Status
from unilaunch.start_variables import MONITOR, attempt_of

if TYPE_CHECKING:
    from unilaunch.agent.shim import Shim
    from unilaunch.monitor.monitor import Monitor
    from unilaunch.monitor.verdict import Verdict

_TICK = 0.2
_ORDER = 15.0  # seconds in which the monitor has ended the job, if it can, once it knows that no host is lost
_DAEMONS_OWN = 1.5  # seconds in which a daemon of the launcher notices too that the other hosts do not answer
_FILES = 4  # open files of each rank in the monitor: its share of a connection, and a probe's
_NEVER = float("inf")


class Supervised:
    """A rank, and the launcher's child that stands for it.

    Attributes:
        rank: The rank.
        shim: The launcher's child; None if this process is that itself.
        dismissed: The launcher's child has been told what to exit with, or has gone.
        closed: Nothing of the rank or its shim is open any more, but for the lock on the output folder.
        waits_until: When the wait for an order of the monitor is over, once the rank has ended.
    """

    def __init__(self, rank: RankProcess, shim: "Shim | None") -> None:
        self.rank, self.shim = rank, shim
        self.dismissed = False
        self.closed = False
        self.waits_until = _NEVER


class Agent:
    """Supervises the ranks of a host: an event loop.

    Args:
        environ: The environment of the launcher's child.
        launcher: The launcher's process number, if this process is the launcher's child itself; 0 if shims are.
    """

    def __init__(self, environ: Mapping[str, str], launcher: int) -> None:
        self.launcher, self.attempt = launcher, attempt_of(environ)
        self.selector = DefaultSelector()
        self.ranks: list[Supervised] = []
        self.connection: Connection | None = None
        self.monitor: Monitor | None = None
        self.monitored_by: Supervised | None = None  # the rank for which this is the monitor
        self.exit_code: int | None = None  # the job's, once the monitor has ordered its end
        self.stop: messages.Stop | None = None
        self.standing_orders: list[messages.Message] = []
        self.full: list[tuple[RankProcess, Stream]] = []  # streams that wait for the launcher
        self.linger_until = 0.0
        if MONITOR in environ:
            self._connect(environ[MONITOR])
        adopt_orphans()
        self._wake_at_signals()

    def begin_again(self, attempt: int) -> None:
        """Be the agent of the next attempt: what the last one's ranks have left is over, the connection stays."""
        self.attempt = attempt
        self.leave_behind()
        for one in self.ranks:
            one.rank.let_go()
        self.ranks.clear()
        self.full.clear()
        self.standing_orders.clear()
        self.exit_code = self.stop = None
        self.linger_until = 0.0

    # The ranks

    def add(self, pid: int, channel: Channel, shim: "Shim | None", *, own_group: bool) -> None:
        """Supervise a rank that has just been forked."""
        channel.be_agent()
        consoles = shim.consoles if shim else (1, 2)
        rank = RankProcess(pid, channel, consoles, own_group=own_group, tell=self._pass_on)
        one = Supervised(rank, shim)
        self.ranks.append(one)
        self._watch(channel.control, rank.hear)
        self._watch(channel.stacks, rank.hear_stack)
        for stream in rank.output.streams:
            self._watch(stream.source, partial(self._move, rank, stream))
        if shim:
            self._watch(shim.connection, lambda: self._hear_shim(one))
        for order in self.standing_orders:  # given before this rank came
            _order(rank, order)

    def _move(self, rank: RankProcess, stream: Stream) -> bool:
        """Take a piece of a rank's output; if much of it waits for the launcher, the rank is to wait too."""
        if stream.is_full and rank.is_running:
            self.full.append((rank, stream))
            return False
        return rank.output.move(stream)

    def forget(self) -> None:
        """Close what is the agent's, in a rank that has been forked from it."""
        self.selector.close()
        if self.connection:
            self.connection.close()
        if self.monitor:
            self.monitor.inbox.forget()
        for one in self.ranks:
            one.rank.let_go()
            if not one.closed:
                one.rank.close()
            if one.shim and not one.closed:
                one.shim.close()

    def _watch(self, source: Any, act: Callable[[], bool]) -> None:
        """Call *act* when there is something to read, until it returns False."""

        def acted() -> None:
            if not act():
                self.selector.unregister(source)

        self.selector.register(source, EVENT_READ, acted)

    def _hear_shim(self, one: Supervised) -> bool:
        """Pass on the signals that the launcher's child got; if it has gone, the launcher has, or has killed it."""
        numbers = one.shim.hear() if one.shim else b""
        for number in numbers:
            one.rank.pass_on(number)
        if not numbers and not one.dismissed:
            one.dismissed = one.rank.abandoned = True
            if one.rank.is_running:
                one.rank.end(_lost_launcher())
        return bool(numbers)

    # The loop

    @property
    def is_over(self) -> bool:
        """Every rank has ended, and its launcher's child may exit or has."""
        return all(self._is_over(one) for one in self.ranks)

    def _is_over(self, one: Supervised) -> bool:
        ended = one.rank.state is State.ENDED
        return ended and (one.dismissed or (one.shim is None and self._may_go(one)))

    def turn(self) -> None:
        """Wait for the next event, do what it asks for, and what is due."""
        soon = min((one.rank.output.again for one in self.ranks), default=_TICK)
        due = min((one.rank.stack_at for one in self.ranks), default=_NEVER) - time.monotonic()
        for key, events in self.selector.select(min(_TICK, soon, max(0.0, due))):
            if isinstance(key.data, Connection):
                key.data.ready(key.fileobj, events)
            else:
                key.data()
        self._resume_streams()
        self._reap()
        if self.launcher and os.getppid() != self.launcher:
            self._lose_launcher()
        self._tend_ranks()
        if self.connection:
            self.connection.look()
        self._be_monitor_for_a_turn()

    def _tend_ranks(self) -> None:
        now = time.monotonic()
        for one in self.ranks:
            if one.closed:
                continue
            one.rank.tick(now)
            if one.shim and one.rank.state is State.ENDED and (one.dismissed or self._may_go(one)):
                self._dismiss(one, one.shim)

    def _dismiss(self, one: Supervised, shim: "Shim") -> None:
        """Let the launcher's child of a rank exit, and close everything of the two."""
        self._clean_up(one)
        if not one.dismissed:
            self._say_last(one)
            one.dismissed = True
            shim.dismiss(self.code_of(one))
        one.closed = True
        streams = [stream.source for stream in one.rank.output.streams]
        sources: list[Any] = [one.rank.channel.control, one.rank.channel.stacks, shim.connection, *streams]
        for source in sources:
            with suppress(KeyError):
                self.selector.unregister(source)
        one.rank.close()
        shim.close()

    def _resume_streams(self) -> None:
        for rank, stream in [one for one in self.full if not (one[1].is_full and one[0].is_running)]:
            self.full.remove((rank, stream))
            self._watch(stream.source, partial(self._move, rank, stream))

    def _reap(self) -> None:
        """Take note of processes that have exited: ranks, and what they left behind."""
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                for one in self.ranks:
                    if one.rank.pid == pid and one.rank.is_running:
                        one.rank.exited(status, usage.ru_maxrss * 1024)
                        patience = self.connection.host_timeout if self.connection else 0.0
                        one.waits_until = time.monotonic() + _ORDER + patience

    def _lose_launcher(self) -> None:
        self.launcher = 0
        for one in self.ranks:
            one.dismissed = one.rank.abandoned = True  # nobody waits for it
            if one.rank.is_running:
                one.rank.end(_lost_launcher())

    def _may_go(self, one: Supervised) -> bool:
        """Return whether the launcher may see that this rank has ended: it may end the others at once."""
        now = time.monotonic()
        if self.monitored_by is one and self.monitor:
            return self.monitor.ending or (self.monitor.finished and not self.monitor.failures())
        if now < self.linger_until and not one.dismissed:
            return False
        if self.exit_code is not None or one.rank.ended_by:
            return True
        reachable = bool(self.connection and self.connection.open)
        if self.stop:
            return now > one.rank.grace_until + FAREWELL or not reachable
        waits = one.rank.failure and reachable
        aborts = one.rank.placed is None or one.rank.placed.abort
        return not waits or (aborts and now > one.waits_until)

    def code_of(self, one: Supervised) -> int:
        """Return what the launcher's child of a rank exits with."""
        return one.rank.exit_code if self.exit_code is None else self.exit_code

    def _clean_up(self, one: Supervised) -> None:
        """End what a rank has left behind, if it has not ended well."""
        if (self.code_of(one) or self.stop) and one.rank.own_group:
            kill_children(one.rank.pid)

    # The control connection

    def _connect(self, where: str) -> None:
        if not self.connection:
            self.connection = Connection(where, self.selector, self._hear_order, self._lose_monitor)
            for one in self.ranks:
                if one.rank.named:
                    self._tell(one.rank, one.rank.named)

    def _pass_on(self, rank: RankProcess, message: OfRank | OfAgent) -> None:
        """Take what a rank or its supervision tells, and pass it on to the monitor."""
        match message:
            case messages.MonitorAt(where):
                self._connect(where)
            case messages.BeMonitor():
                self._be_monitor(rank, message)
            case _:
                self._tell(rank, message)

    def _tell(self, rank: RankProcess, message: OfRank | OfAgent) -> None:
        if self.connection and rank.number != NO_RANK:
            self.connection.send(message, rank.number)

    def _hear_order(self, attempt: int, order: messages.Message) -> None:
        if attempt == self.attempt:  # or it is of an earlier start
            self._obey(order)

    def _obey(self, order: messages.Message) -> None:
        match order:
            case messages.Stop():
                self.stop = order
                self.standing_orders.append(order)
            case messages.Leave(code) | messages.End(code):
                self.exit_code = code
                self.standing_orders.append(order)
            case _:
                pass
        for one in self.ranks:
            _order(one.rank, order)

    def _lose_monitor(self, reason: str) -> None:
        """End the ranks; if the other hosts do not answer, be there until the launcher's daemon has noticed too.

        It would tell them of our end, and as long as it waits for their answer it does not look whether they are there.
        """
        if self.connection and self.connection.host_lost:
            self.linger_until = time.monotonic() + _DAEMONS_OWN
        for one in self.ranks:
            if self.exit_code is None and one.rank.is_running:
                words = f"unilaunch ended it: its control connection to the monitor broke: {reason}"
                one.rank.end(Failure(Cause.LOST_PEER, words, 1))

    @property
    def is_connected(self) -> bool:
        """The connection to the monitor stands."""
        return bool(self.connection and self.connection.connection)

    @property
    def is_cut_off(self) -> bool:
        """The host of the monitor does not answer."""
        return bool(self.connection and self.connection.host_lost)

    # The monitor, without a `launch`

    def _be_monitor(self, rank: RankProcess, how: messages.BeMonitor) -> None:
        from unilaunch.monitor.inbox import Inbox
        from unilaunch.monitor.monitor import Monitor

        allow_files(_FILES * how.size)
        inbox = Inbox(socket.socket(fileno=rank.listener), bytes.fromhex(how.secret), how.host_timeout)
        self.monitored_by = next(one for one in self.ranks if one.rank is rank)
        self.monitor = Monitor(
            inbox, how.size, how.several, how.stall_timeout, how.abort, how.lost_patience, announce=self._give_verdict
        )
        self.selector.register(inbox.selector.fileno(), EVENT_READ, lambda: inbox.take(0))

    def _be_monitor_for_a_turn(self) -> None:
        monitor = self.monitor
        if not monitor or not self.monitored_by:
            return
        rank = self.monitored_by.rank
        monitor.inbox.take(0)
        monitor.hurried = rank.from_outside or bool(rank.ended_by)
        monitor.look()
        if monitor.ending and monitor.verdict and self.exit_code is None:
            self._obey(messages.End(monitor.verdict.exit_code))

    def _give_verdict(self, verdict: "Verdict") -> None:
        """Show and keep what the whole job came to."""
        from unilaunch.monitor.verdict import show

        one = self.monitored_by
        if not one:
            return
        said = ""
        if (placed := one.rank.placed) and (folder := one.rank.output.folder):
            said = write_report(folder.parent, placed.run, verdict.as_json(), folder)
        text = "" if verdict.first.together else show(verdict, traceback=False)
        one.rank.output.streams[1].say(text + (f"unilaunch: {said}\n" if said else ""))

    # The end

    def leave(self) -> None:
        """Say the last words, and end what the ranks have left behind."""
        self.leave_behind()
        until = time.monotonic() + FAREWELL
        while self.connection and self.connection.open and self.connection.outgoing and time.monotonic() < until:
            self.turn()
        if self.monitor and not self.monitor.ending and (verdict := self.monitor.conclude()):
            self._give_verdict(verdict)
        for one in self.ranks:
            if not one.dismissed:
                self._say_last(one)

    def leave_behind(self) -> None:
        """End what the ranks have left behind, if the job has not ended well."""
        if self.stop or any(self.code_of(one) for one in self.ranks):
            kill_children()

    def _say_last(self, one: Supervised) -> None:
        """Without a monitor that has heard it, say how a rank failed that could not say it itself."""
        from unilaunch.monitor.verdict import judge, show

        heard = self.monitor or (self.connection and self.connection.connection)
        if one.rank.failure and not one.rank.known and not heard:
            one.rank.output.streams[1].say(show(judge([one.rank.failure]), traceback=False))

    def say_to_all(self, text: str) -> None:
        """Write to the consoles of all ranks that have not been dismissed."""
        for one in self.ranks:
            if not one.dismissed:
                one.rank.output.streams[1].say(text)

    def _wake_at_signals(self) -> None:
        """Wake up when a rank ends or a signal comes."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.selector.register(reading, EVENT_READ, lambda: os.read(reading, 512))

    def pass_signal_on(self, number: int, _: FrameType | None = None) -> None:
        """Pass a signal on to the ranks: where this process is the launcher's child itself."""
        for one in self.ranks:
            one.rank.pass_on(number)


def _order(rank: RankProcess, order: messages.Message) -> None:
    """Do with one rank what the monitor has ordered."""
    match order:
        case messages.ShowStacks():
            rank.ask_stack()
        case messages.PassSignal(number):
            rank.signal(number)
        case messages.Stop():
            rank.stop_patiently(order)
        case messages.Release():
            rank.release()
        case messages.Leave():
            rank.ordered = True
        case messages.End():
            rank.ordered = True
            rank.end()
        case _:
            pass


def _lost_launcher() -> Failure:
    return Failure(Cause.LOST_LAUNCHER, "unilaunch ended it: its launcher has gone", 1)


def be_rank(channel: Channel, *, own_group: bool) -> Status:
    """Be the rank that has just been forked from the agent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return channel.be_rank(own_group=own_group)
