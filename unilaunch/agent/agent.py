"""The agent: it supervises the ranks of a host, keeps their output, records how they end, and cleans up.

The agent records every end of a rank (an exception, os._exit, SIGKILL, the OOM killer). It ends the rank when the
launcher has exited, and it reads the stacks of a rank that hangs. Each agent has one connection to the monitor, which
runs in `unilaunch launch`; without `launch` the monitor runs in the agent of rank 0.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from unilaunch.agent.channel import Channel
from unilaunch.agent.hidden_output import HiddenOutput
from unilaunch.agent.loop import Loop
from unilaunch.agent.output import Output
from unilaunch.agent.processes import adopt_orphans, kill_children
from unilaunch.agent.rank_process import FAREWELL, RankProcess, State
from unilaunch.agent.shim import Shim
from unilaunch.agent.stack_reader import NEVER
from unilaunch.agent.supervised import Streams, Supervised, order_rank
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Connection
from unilaunch.monitor.messages import NO_RANK, OfAgent, OfRank
from unilaunch.output.failure import Cause, Failure
from unilaunch.start_variables import MONITOR, attempt_of

if TYPE_CHECKING:
    from unilaunch.agent.own_monitor import OwnMonitor

_TICK = 0.2
_ORDER = 15.0  # seconds that the agent waits for the monitor's order to end the job, if no host is lost
_DAEMONS_OWN = 1.5  # seconds in which a daemon of the launcher also notices that the other hosts do not answer


class Agent:
    """Supervises the ranks of a host in an event loop.

    Args:
        environ: The environment of the launcher's child.
        launcher: The launcher's process number, if this process is the launcher's child; 0 if that child is a shim.
    """

    def __init__(self, environ: Mapping[str, str], launcher: int) -> None:
        self.launcher, self.attempt = launcher, attempt_of(environ)
        self.loop = Loop()
        self.ranks: list[Supervised] = []
        self.connection: Connection | None = None
        self.monitor: OwnMonitor | None = None  # set if the monitor runs in this agent, without `launch`
        self.exit_code: int | None = None  # the job's exit code, once the monitor has ordered the end
        self.stop: messages.Stop | None = None
        self.standing_orders: list[messages.Message] = []
        self.streams = Streams(self.loop)
        self.linger_until = 0.0
        if MONITOR in environ:
            self._connect(environ[MONITOR])
        adopt_orphans()

    def begin_again(self, attempt: int) -> None:
        """Reset the state for the next attempt to start the job; the connection to the monitor stays open."""
        self.attempt = attempt
        self.rest()
        self.ranks.clear()
        self.streams.clear()
        self.standing_orders.clear()
        self.exit_code = self.stop = None
        self.linger_until = 0.0

    def rest(self) -> None:
        """Keep nothing of an attempt that is over: the next one may be another agent's, which claims the folder."""
        self.leave_behind()
        for one in self.ranks:
            one.rank.let_go()

    # The ranks

    def add(self, pid: int, channel: Channel, shim: Shim | None, hidden: HiddenOutput, *, own_group: bool) -> None:
        """Supervise a rank that has just been forked."""
        channel.be_agent()
        output = Output((channel.stdout, channel.stderr), shim.consoles if shim else (1, 2), hidden)
        rank = RankProcess(pid, channel, output, own_group=own_group, tell=self._pass_on)
        one = Supervised(rank, shim)
        self.ranks.append(one)
        self.loop.watch(channel.control, rank.hear)
        self.loop.watch(channel.stacks, rank.stacks.hear)
        self.streams.add(rank)
        if shim:
            self.loop.watch(shim.connection, lambda: self._hear_shim(one))
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
            if not one.closed:
                one.rank.close()
            if one.shim and not one.closed:
                one.shim.close()

    def _hear_shim(self, one: Supervised) -> bool:
        """Pass on the signals that the shim received; if the shim has exited, its launcher has exited or killed it."""
        numbers = one.shim.hear() if one.shim else b""
        for number in numbers:
            one.rank.pass_on(number)
        if not numbers and not one.dismissed:
            one.lose_launcher()
        return bool(numbers)

    # The loop

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended, and its shim has exited or may exit."""
        return all(self._is_over(one) for one in self.ranks)

    def _is_over(self, one: Supervised) -> bool:
        ended = one.rank.state is State.ENDED
        return ended and (one.dismissed or (one.shim is None and self._may_go(one)))

    def turn(self) -> None:
        """Wait for the next event, handle it, and do the work whose time has come."""
        soon = min((one.rank.output.again for one in self.ranks), default=_TICK)
        due = min((one.rank.stacks.due for one in self.ranks), default=NEVER) - time.monotonic()
        self.streams.resume()  # first: of a rank that has exited, the rest is read before its output ends
        self.loop.turn(min(_TICK, soon, max(0.0, due)))
        self._reap()
        if self.launcher and os.getppid() != self.launcher:
            self.launcher = 0
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
            if one.shim and one.rank.state is State.ENDED and (one.dismissed or self._may_go(one)):
                self._dismiss(one, one.shim)

    def _dismiss(self, one: Supervised, shim: Shim) -> None:
        """Let the shim of a rank exit, and close the files of the rank and of the shim."""
        if (self.code_of(one) or self.stop) and one.rank.own_group:  # the rank has failed: end what it started
            kill_children(one.rank.pid)
        if not one.dismissed:
            self._say_last(one)
            one.dismissed = True
            shim.dismiss(self.code_of(one))
        one.closed = True
        streams = [stream.source for stream in one.rank.output.streams]
        sources: list[Any] = [one.rank.channel.control, one.rank.channel.stacks, shim.connection, *streams]
        self.loop.forget(sources)
        one.rank.close()
        shim.close()

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
        """Return whether the shim may exit: the launcher may end the other ranks as soon as it does."""
        now = time.monotonic()
        if self.monitor and self.monitor.rank is one.rank:
            judged = self.monitor.monitor
            return judged.ending or (judged.finished and not judged.failures())
        if now < self.linger_until and not one.dismissed:
            return False
        if self.exit_code is not None or one.rank.ended_by:
            return True
        connection = self.connection if self.connection and self.connection.open else None
        if self.stop:
            return now > one.rank.grace_until + FAREWELL or not connection
        if self.is_connected and connection and connection.outgoing:  # a large value: the launcher must wait for it
            return False
        waits = one.rank.failure and connection and one.rank.number != NO_RANK  # else the monitor has not heard of it
        aborts = one.rank.placed is None or one.rank.placed.abort
        return not waits or (aborts and now > one.waits_until)

    def code_of(self, one: Supervised) -> int:
        """Return the exit code of a rank's shim."""
        return one.rank.exit_code if self.exit_code is None else self.exit_code

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
                self.standing_orders.append(order)
            case _:
                pass
        for one in self.ranks:
            order_rank(one.rank, order, self.loop)

    def _lose_monitor(self, reason: str) -> None:
        """End the ranks. If the other hosts do not answer, stay until the launcher's daemon has noticed that too.

        The daemon would report the end of this process to the other hosts. While it waits for their answer, it does not
        check whether they are reachable.
        """
        if self.connection and self.connection.host_lost:
            self.linger_until = time.monotonic() + _DAEMONS_OWN
        for one in self.ranks:
            if self.exit_code is None and one.rank.is_running:
                words = f"unilaunch ended it: its control connection to the monitor broke: {reason}"
                one.rank.end(Failure(Cause.LOST_PEER, words, 1))

    @property
    def is_connected(self) -> bool:
        """Whether the connection to the monitor is open."""
        return bool(self.connection and self.connection.connection)

    # The end

    def leave(self) -> None:
        """Send the last messages, and end the processes that the ranks started."""
        self.leave_behind()
        until = time.monotonic() + FAREWELL
        while self.connection and self.connection.open and self.connection.outgoing and time.monotonic() < until:
            self.turn()
        if self.monitor:
            self.monitor.conclude()
        for one in self.ranks:
            if not one.dismissed:
                self._say_last(one)

    def leave_behind(self) -> None:
        """End the processes that the ranks started, if the job has failed."""
        if self.stop or any(self.code_of(one) for one in self.ranks):
            kill_children()

    def _say_last(self, one: Supervised) -> None:
        """Show how a rank failed, if no monitor received the failure and the rank did not show it."""
        from unilaunch.monitor.verdict import judge, show

        heard = self.monitor or (self.is_connected and one.rank.number != NO_RANK)
        if one.rank.failure and not heard and (one.rank.output.last_words or not one.rank.known):
            one.rank.output.streams[1].say(show(judge([one.rank.failure]), unseen=False))
        if one.rank.number == 0:
            one.rank.output.say_hidden_files()

    def note_signal(self, number: int, _: FrameType | None, *, has_it: bool = False) -> None:
        """Pass a signal on to the ranks, unless each of them *has_it* itself."""
        for one in self.ranks:
            one.rank.pass_on(number, has_it=has_it)
