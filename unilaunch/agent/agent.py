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
from typing import TYPE_CHECKING

from unilaunch.agent.channel import Channel
from unilaunch.agent.output import HiddenOutput, Output
from unilaunch.agent.processes import Loop, adopt_orphans, kill_children
from unilaunch.agent.rank_process import FAREWELL, RankProcess, State
from unilaunch.agent.stack_reader import NEVER
from unilaunch.folder.failure import Cause, Failure
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Connection
from unilaunch.monitor.messages import NO_RANK, OfAgent, OfRank
from unilaunch.spec.variables import MONITOR, attempt_of

if TYPE_CHECKING:
    from unilaunch.agent.own_monitor import OwnMonitor

_TICK = 0.2
_OTHERS = 3.0  # seconds that the agent waits for ranks of other agents that should have ended
_ORDER = 15.0  # seconds that the agent waits for the monitor's order to end the job, if no host is lost
_DAEMONS_OWN = 1.5  # seconds in which a daemon of the launcher also notices that the other hosts do not answer
_GUARDS_OWN = 1.0  # seconds in which the guard of the agent that was killed exits with its code: the first code counts


class Agent:
    """Supervises the ranks of a host in an event loop.

    Args:
        environ: The environment of the launcher's child.
        parent: The process number of its guard; the ranks end when the guard has exited.
    """

    def __init__(self, environ: Mapping[str, str], parent: int) -> None:
        self.parent, self.attempt = parent, attempt_of(environ)
        self.loop = Loop()
        self.ranks: list[RankProcess] = []
        self.connection: Connection | None = None
        self.monitor: OwnMonitor | None = None  # set if the monitor runs in this agent, without `launch`
        self.exit_code: int | None = None  # the job's exit code, once the monitor has ordered the end
        self.stays_until = 0.0  # the agent stays so long, also when its own ranks have ended
        self.stop: messages.Stop | None = None
        self.standing_orders: list[messages.Message] = []
        if MONITOR in environ:
            self._connect(environ[MONITOR])
        adopt_orphans()

    # The ranks

    def add(self, pid: int, channel: Channel, hidden: HiddenOutput, *, paced: bool = True) -> None:
        """Supervise a rank that has just been forked."""
        channel.be_agent()
        output = Output((channel.stdout, channel.stderr), (1, 2), hidden, paced=paced)
        rank = RankProcess(pid, channel, output, self.loop, self._pass_on)
        self.ranks.append(rank)
        for order in self.standing_orders:  # orders from before this rank was forked
            rank.obey(order)

    def note_signal(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on to the ranks."""
        for rank in self.ranks:
            rank.pass_on(number)

    def close_files(self) -> None:
        """Close the agent's files and sockets, at its end, or in a rank that has been forked from it."""
        self.loop.leave()
        if self.connection:
            self.connection.close()
        if self.monitor:
            self.monitor.inbox.close_files()
        for rank in self.ranks:
            rank.close_files()

    # The loop

    def run(self) -> int:
        """Supervise the ranks until all have ended; return the exit code of the job on this host."""
        while not all(rank.state is State.ENDED and self._may_go(rank) for rank in self.ranks):
            self.turn()
        self._leave()
        self.close_files()
        return self.exit_code if self.exit_code is not None else max(rank.exit_code for rank in self.ranks)

    def turn(self) -> None:
        """Wait for the next event, handle it, and do the work whose time has come."""
        soon = min((rank.output.again for rank in self.ranks), default=_TICK)
        due = min((rank.stacks.due for rank in self.ranks), default=NEVER) - time.monotonic()
        for rank in self.ranks:  # first: of a rank that has exited, the rest is read before its output ends
            rank.resume_output()
        self.loop.turn(min(_TICK, soon, max(0.0, due)))
        self._reap()
        if self.parent and os.getppid() != self.parent:
            self.parent = 0
            for rank in self.ranks:
                rank.abandon()
        now = time.monotonic()
        for rank in self.ranks:
            rank.tick(now)
        if self.connection:
            self.connection.look()
        if self.monitor and (code := self.monitor.turn()) is not None and self.exit_code is None:
            self._obey(messages.End(code))

    def _reap(self) -> None:
        """Reap the processes that have exited: ranks, and processes that ranks started."""
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                for rank in self.ranks:
                    if rank.pid == pid and rank.is_running:
                        rank.exited(status, usage)

    def _may_go(self, rank: RankProcess) -> bool:
        """Return whether the agent need not wait longer: the launcher may end the other ranks as soon as it exits."""
        now = time.monotonic()
        if self.monitor and self.monitor.rank is rank:
            judged = self.monitor.monitor
            if judged.ending:
                return judged.finished or judged.hurried or now > self.stays_until
            return judged.finished and not judged.failures()
        if now <= self.stays_until and not rank.abandoned:
            return False
        known = self.exit_code is not None or rank.ended_by or rank.abandoned
        return bool(known) or not self._waits_for_an_order(rank, now)

    def _waits_for_an_order(self, rank: RankProcess, now: float) -> bool:
        """Return whether the monitor is still to say how the job ends."""
        connection = self.connection if self.connection and self.connection.open else None
        if connection is None:
            return False
        if self.stop:
            return now <= rank.grace_until + FAREWELL
        if connection.connection and connection.outgoing:  # a large value: the launcher must wait for it
            return True
        if rank.failure is None or rank.number == NO_RANK:  # then the monitor decides nothing about it
            return False
        aborts = rank.placed is None or rank.placed.abort
        return not aborts or now <= rank.exited_at + _ORDER + connection.host_timeout

    # The control connection

    def _connect(self, where: str) -> None:
        if not self.connection:
            self.connection = Connection(where, self.loop.selector, self._hear_order, self._lose_monitor)
            for rank in self.ranks:
                if rank.named:
                    self._tell(rank, rank.named)

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
        now = time.monotonic()
        match order:
            case messages.Stop():
                self.stop = order
            case messages.End(code):
                self.exit_code, self.stays_until = code, now + _OTHERS
            case messages.Leave(code, seconds):
                self.exit_code, self.stays_until = code, now + seconds + _OTHERS * (seconds > 0)
        if isinstance(order, messages.Stop | messages.Leave | messages.End):
            self.standing_orders.append(order)
        for rank in self.ranks:
            rank.obey(order)

    def _lose_monitor(self, reason: str) -> None:
        """End the ranks, and stay for a while: the launcher ends the job with the exit code of the first to exit.

        If the other hosts do not answer, the launcher's daemon must notice that too: it would report the end of this
        process to the other hosts. While it waits for their answer, it does not check whether they are reachable.
        """
        self.stays_until = time.monotonic()
        if self.connection and self.connection.host_lost:
            self.stays_until += _DAEMONS_OWN
        elif self.exit_code is None:
            self.stays_until += _GUARDS_OWN
        for rank in self.ranks:
            if self.exit_code is None and rank.is_running:
                words = f"unilaunch ended it: its control connection to the monitor broke: {reason}"
                rank.end(Failure(Cause.LOST_PEER, words, 1))

    @property
    def _is_connected(self) -> bool:
        """Whether the connection to the monitor is open."""
        return bool(self.connection and self.connection.connection)

    # The end

    def _leave(self) -> None:
        """Send the last messages, and end the processes that the ranks started."""
        if self.stop or self.exit_code or any(rank.exit_code for rank in self.ranks):
            kill_children()
        until = time.monotonic() + FAREWELL
        while self.connection and self.connection.open and self.connection.outgoing and time.monotonic() < until:
            self.turn()
        if self.monitor:
            self.monitor.conclude()
        for rank in self.ranks:
            if not rank.abandoned:
                self._say_last(rank)

    def _say_last(self, rank: RankProcess) -> None:
        """Show how a rank failed, if no monitor has judged or received the failure and the rank did not show it."""
        from unilaunch.monitor.verdict import judge, show

        is_told = self.monitor or self.exit_code is not None or (self._is_connected and rank.number != NO_RANK)
        if rank.failure and not is_told and (rank.output.last_words or not rank.reported):
            rank.output.say(show(judge([rank.failure]), unseen=False))
        if rank.number == 0:
            rank.output.say_hidden_files()
