"""The agent: it supervises the ranks of a host, keeps their output, records how they end, and cleans up.

The agent records every end of a rank (an exception, os._exit, SIGKILL, the OOM killer). It ends the rank when the
launcher has exited, and it reads the stacks of a rank that hangs. Each agent has one connection to the monitor, which
runs in `unilaunch launch`; without `launch` the monitor runs in the agent of rank 0.
"""

import os
import time
from binascii import a2b_base64
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from unilaunch.agent.channel import Channel
from unilaunch.agent.hidden_output import HiddenOutput
from unilaunch.agent.input import Input
from unilaunch.agent.loop import Loop
from unilaunch.agent.output import Output, Stream
from unilaunch.agent.processes import adopt_orphans, kill_children
from unilaunch.agent.rank_process import FAREWELL, RankProcess, State
from unilaunch.agent.stack_reader import NEVER, read_native
from unilaunch.folder.failure import Cause, Failure
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Connection
from unilaunch.monitor.messages import NO_RANK, OfAgent, OfRank
from unilaunch.spec.variables import MONITOR, attempt_of

if TYPE_CHECKING:
    from unilaunch.agent.own_monitor import OwnMonitor

_TICK = 0.2
_OTHERS = 3.0  # seconds that the agent waits, after the order to end the ranks, for those of other agents
_ORDER = 15.0  # seconds that the agent waits for the monitor's order to end the job, if no host is lost
_DAEMONS_OWN = 1.5  # seconds in which a daemon of the launcher also notices that the other hosts do not answer
_GUARDS_OWN = 1.0  # seconds in which the guard of the agent that was killed exits with its code: the first code counts
#: Seconds until `launch` has passed on a signal that a scheduler has sent to every process of the job.
_SAME = 1.0


class Supervised:
    """A rank, as its agent follows it.

    Attributes:
        rank: The rank.
        abandoned: Whether the launcher has exited.
        closed: Whether the connections to the rank are closed.
        waits_until: Until when the agent waits for an order of the monitor, once the rank has ended.
    """

    def __init__(self, rank: RankProcess) -> None:
        self.rank = rank
        self.abandoned = False
        self.closed = False
        self.waits_until = NEVER

    def lose_launcher(self) -> None:
        """End the rank, since its launcher has exited."""
        self.abandoned = self.rank.abandoned = True
        if self.rank.is_running:
            self.rank.end(Failure(Cause.LOST_LAUNCHER, "unilaunch ended it: its launcher has exited", 1))


def order_rank(rank: RankProcess, order: messages.Message, loop: Loop) -> None:
    """Apply an order of the monitor to one rank; work that takes time is done in the agent's loop."""
    match order:
        case messages.ShowStacks(native=True) if rank.is_running:
            read_native(rank.pid, loop, lambda text: rank.tell(rank, messages.Stack(text, rank.progress.doing)))
        case messages.ShowStacks():
            rank.ask_stack()
        case messages.PassSignal(number):
            _pass_signal(rank, number)
        case messages.Stop():
            rank.stop_patiently(order)
        case messages.Release():
            rank.release()
        case messages.Leave():
            rank.ordered = True
        case messages.End(_, grace):
            rank.ordered = True
            rank.end(grace=grace)
        case _:
            pass


def _pass_signal(rank: RankProcess, number: int) -> None:
    """Send a rank a signal that `launch` has got, unless the rank has got it from outside too."""
    if time.monotonic() - rank.passed_on.get(number, -_SAME) >= _SAME:
        rank.signal(number)


class Streams:
    """The streams in the agent's loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.full: list[tuple[RankProcess, Stream]] = []  # streams that wait for the launcher

    def add(self, rank: RankProcess) -> None:
        """Read a rank's output from now on."""
        for stream in rank.output.streams:
            self._watch(rank, stream)

    def resume(self) -> None:
        """Read again from the streams for which there is room again."""
        for rank, stream in [one for one in self.full if not _must_wait(*one)]:
            self.full.remove((rank, stream))
            self._watch(rank, stream)

    def clear(self) -> None:
        """Remove the streams of ranks that have ended."""
        self.full.clear()

    def _watch(self, rank: RankProcess, stream: Stream) -> None:
        self.loop.watch(stream.source, partial(self._move, rank, stream))

    def _move(self, rank: RankProcess, stream: Stream) -> bool:
        rank.hear_place()
        if _must_wait(rank, stream):
            self.full.append((rank, stream))
            return False
        return rank.output.move(stream)


def _must_wait(rank: RankProcess, stream: Stream) -> bool:
    return stream.is_full and rank.is_running


class Agent:
    """Supervises the ranks of a host in an event loop.

    Args:
        environ: The environment of the launcher's child.
        parent: The process number of its guard; the ranks end when the guard has exited.
    """

    def __init__(self, environ: Mapping[str, str], parent: int) -> None:
        self.parent, self.attempt = parent, attempt_of(environ)
        self.loop = Loop()
        self.ranks: list[Supervised] = []
        self.connection: Connection | None = None
        self.monitor: OwnMonitor | None = None  # set if the monitor runs in this agent, without `launch`
        self.exit_code: int | None = None  # the job's exit code, once the monitor has ordered the end
        self.leave_at = 0.0  # until when the agent waits for the ranks of other agents to end, after that order
        self.stop: messages.Stop | None = None
        self.standing_orders: list[messages.Message] = []
        self.streams = Streams(self.loop)
        self.linger_until = 0.0
        if MONITOR in environ:
            self._connect(environ[MONITOR])
        adopt_orphans()

    # The ranks

    def add(self, pid: int, channel: Channel, hidden: HiddenOutput, *, own_group: bool, paced: bool = True) -> None:
        """Supervise a rank that has just been forked."""
        channel.be_agent()
        output = Output((channel.stdout, channel.stderr), (1, 2), hidden, paced=paced)
        rank = RankProcess(pid, channel, output, own_group=own_group, tell=self._pass_on)
        if channel.stdin >= 0:
            rank.input = Input(channel.stdin, self.loop, lambda: self._tell(rank, messages.NeedsInput()))
        self.ranks.append(Supervised(rank))
        self.loop.watch(channel.control, rank.hear)
        self.loop.watch(channel.stacks, rank.stacks.hear)
        self.streams.add(rank)
        for order in self.standing_orders:  # orders from before this rank was forked
            order_rank(rank, order, self.loop)

    def forget(self) -> None:
        """Close the agent's files and sockets, at its end, or in a rank that has been forked from it."""
        self.loop.leave()
        if self.connection:
            self.connection.close()
        if self.monitor:
            self.monitor.inbox.forget()
        for one in self.ranks:
            one.rank.let_go()
            if one.closed:
                one.rank.output.close()
            else:
                one.rank.close()

    # The loop

    def run(self) -> int:
        """Supervise the ranks until all have ended; return the exit code of the job on this host."""
        while not all(one.rank.state is State.ENDED and self._may_go(one) for one in self.ranks):
            self.turn()
        self._leave()
        self.forget()
        return self.exit_code if self.exit_code is not None else max(one.rank.exit_code for one in self.ranks)

    def turn(self) -> None:
        """Wait for the next event, handle it, and do the work whose time has come."""
        soon = min((one.rank.output.again for one in self.ranks), default=_TICK)
        due = min((one.rank.stacks.due for one in self.ranks), default=NEVER) - time.monotonic()
        self.streams.resume()  # first: of a rank that has exited, the rest is read before its output ends
        self.loop.turn(min(_TICK, soon, max(0.0, due)))
        self._reap()
        if self.parent and os.getppid() != self.parent:
            self.parent = 0
            for one in self.ranks:
                one.lose_launcher()
        self._tend_ranks()
        if self.connection:
            self.connection.look()
        if self.monitor and (code := self.monitor.turn()) is not None and self.exit_code is None:
            self._obey(messages.End(code))

    def _tend_ranks(self) -> None:
        now = time.monotonic()
        for one in self.ranks:
            if one.closed:
                continue
            one.rank.tick(now)
            if one.rank.state is State.ENDED and len(self.ranks) > 1:
                self._close(one)

    def _close(self, one: Supervised) -> None:
        """End what a failed rank has started, and close the files of a rank that has ended; its console stays."""
        if one.rank.exit_code and one.rank.own_group:
            kill_children(one.rank.pid)
        one.closed = True
        streams = [stream.source for stream in one.rank.output.streams]
        self.loop.forget([one.rank.channel.control, one.rank.channel.stacks, *streams])
        one.rank.channel.close()

    def _reap(self) -> None:
        """Reap the processes that have exited: ranks, and processes that ranks started."""
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                for one in self.ranks:
                    if one.rank.pid == pid and one.rank.is_running:
                        one.rank.exited(status, usage)
                        patience = self.connection.host_timeout if self.connection else 0.0
                        one.waits_until = time.monotonic() + _ORDER + patience

    def _may_go(self, one: Supervised) -> bool:
        """Return whether the agent need not wait longer: the launcher may end the other ranks as soon as it exits."""
        now = time.monotonic()
        if self.monitor and self.monitor.rank is one.rank:
            judged = self.monitor.monitor
            if judged.ending:
                return judged.finished or judged.hurried or now > self.leave_at
            return judged.finished and not judged.failures()
        if now < self.linger_until and not one.abandoned:
            return False
        if self.exit_code is not None:  # the launcher kills the ranks of other agents when this one exits
            return now > self.leave_at or not self.is_connected
        return bool(one.rank.ended_by) or one.abandoned or not self._waits_for_an_order(one, now)

    def _waits_for_an_order(self, one: Supervised, now: float) -> bool:
        """Return whether the monitor is still to say how the job ends."""
        connection = self.connection if self.connection and self.connection.open else None
        if self.stop:
            return now <= one.rank.grace_until + FAREWELL and connection is not None
        if self.is_connected and connection and connection.outgoing:  # a large value: the launcher must wait for it
            return True
        unheard = one.rank.failure is None or one.rank.number == NO_RANK  # then the monitor decides nothing about it
        aborts = one.rank.placed is None or one.rank.placed.abort
        return connection is not None and not unheard and not (aborts and now > one.waits_until)

    # The control connection

    def _connect(self, where: str) -> None:
        if not self.connection:
            self.connection = Connection(where, self.loop.selector, self._hear_order, self._lose_monitor)
            for one in self.ranks:
                if one.rank.named:
                    self._tell(one.rank, one.rank.named)

    def _pass_on(self, rank: RankProcess, message: OfRank | OfAgent) -> None:
        """Handle a message of a rank or of its supervision, and send it to the monitor."""
        match message:
            case messages.MonitorAt(where):
                self._connect(where)
            case messages.BeMonitor():
                from unilaunch.agent.own_monitor import OwnMonitor

                self.monitor = OwnMonitor(rank, message)
                self.loop.watch(self.monitor.inbox.selector.fileno(), partial(self.monitor.inbox.take, 0))
            case messages.Named(number) if rank.input:
                self._tell(rank, message)
                rank.input.begin(number)
            case _:
                self._tell(rank, message)

    def _tell(self, rank: RankProcess, message: OfRank | OfAgent) -> None:
        if self.connection and rank.number != NO_RANK:
            self.connection.send(message, rank.number)

    def _hear_order(self, attempt: int, order: messages.Message) -> None:
        if attempt == self.attempt:  # otherwise the message is of an earlier attempt
            self._obey(order)

    def _obey(self, order: messages.Message) -> None:
        match order:
            case messages.Stop():
                self.stop = order
                self.standing_orders.append(order)
            case messages.Leave(code) | messages.End(code):
                self.exit_code = code
                self.leave_at = time.monotonic() + _OTHERS * isinstance(order, messages.End)
                self.standing_orders.append(order)
            case messages.Await(seconds):
                self.leave_at = time.monotonic() + seconds + _OTHERS
            case messages.Input(data):
                for one in self.ranks:
                    if one.rank.input:
                        one.rank.input.take(a2b_base64(data))
            case _:
                pass
        for one in self.ranks:
            order_rank(one.rank, order, self.loop)

    def _lose_monitor(self, reason: str) -> None:
        """End the ranks, and stay for a while: the launcher ends the job with the exit code of the first to exit.

        If the other hosts do not answer, the launcher's daemon must notice that too: it would report the end of this
        process to the other hosts. While it waits for their answer, it does not check whether they are reachable.
        """
        if self.connection and self.connection.host_lost:
            self.linger_until = time.monotonic() + _DAEMONS_OWN
        elif self.exit_code is None:
            self.linger_until = time.monotonic() + _GUARDS_OWN
        for one in self.ranks:
            if self.exit_code is None and one.rank.is_running:
                words = f"unilaunch ended it: its control connection to the monitor broke: {reason}"
                one.rank.end(Failure(Cause.LOST_PEER, words, 1))

    @property
    def is_connected(self) -> bool:
        """Whether the connection to the monitor is open."""
        return bool(self.connection and self.connection.connection)

    # The end

    def _leave(self) -> None:
        """Send the last messages, and end the processes that the ranks started."""
        if self.stop or self.exit_code or any(one.rank.exit_code for one in self.ranks):
            kill_children()
        until = time.monotonic() + FAREWELL
        while self.connection and self.connection.open and self.connection.outgoing and time.monotonic() < until:
            self.turn()
        if self.monitor:
            self.monitor.conclude()
        for one in self.ranks:
            if not one.abandoned:
                self._say_last(one)

    def _say_last(self, one: Supervised) -> None:
        """Show how a rank failed, if no monitor has judged or received the failure and the rank did not show it."""
        from unilaunch.monitor.verdict import judge, show

        heard = self.monitor or self.exit_code is not None or (self.is_connected and one.rank.number != NO_RANK)
        if one.rank.failure and not heard and (one.rank.output.last_words or not one.rank.known):
            one.rank.output.streams[1].say(show(judge([one.rank.failure]), unseen=False))
        if one.rank.number == 0:
            one.rank.output.say_hidden_files()

    def note_signal(self, number: int, _: FrameType | None, *, has_it: bool = False) -> None:
        """Pass a signal on to the ranks, unless each of them *has_it* itself."""
        for one in self.ranks:
            one.rank.pass_on(number, has_it=has_it)
