"""Receive the messages of all agents, from every host, with or without a shared file system; keep what each rank says.

This is the monitor's end of the control connections; the agent's end is in `unilaunch.monitor.connection`.
"""

import os
import selectors
import socket
import time
from binascii import b2a_base64
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Self

from unilaunch.folder.failure import Cause, Failure, split_phase
from unilaunch.json_value import JsonValue
from unilaunch.machine.connections import Acceptor
from unilaunch.monitor import messages
from unilaunch.monitor.connection import Listening, notice_silence
from unilaunch.monitor.messages import LARGEST, BadMessageError, End, Input, Message, OfAgent, OfRank, Order
from unilaunch.record import Record, field

#: Most seconds for which messages are read before other work is done.
_AT_ONCE = 0.02
#: Bytes of input that are sent at once.
_PIECE = 1 << 15
_NOTHING = messages.Progress({}, 0.0)


class RankState(Enum):
    """The state of a rank, as far as the monitor knows."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    EXITED = "exited"
    LOST = "lost"


class RankSeen(Record, frozen=False):
    """What a rank and its agent have sent; a later message replaces an earlier one.

    Attributes:
        state: Its state.
        host: The host that it runs on; "?" before it is known, like the device.
        run: The run that it belongs to, once it has an output folder.
        progress: What it is doing.
        pace: The newest message on its steps, busy seconds, received bytes and memory.
        step_seconds: Seconds of a recent step; 0 before that is known.
        moved: When it last made progress, in seconds of `time.monotonic`.
        failure: How it failed.
        lost: Why the connection to its agent broke.
        exit_code: Its exit code; None if it was ordered to end.
        overdue: Whether it did not end in the time of --grace.
        value: What its function returned.
        result: What its model returned.
        stack: Its stacks, if they were requested.
        saving: Whether its program uses the time that it has to end.
    """

    state: RankState = RankState.STARTING
    host: str = "?"
    device: str = "?"
    run: str = ""
    progress: dict[str, JsonValue] = field(default_factory=dict)
    pace: messages.Progress = _NOTHING
    step_seconds: float = 0.0
    moved: float = 0.0
    failure: Failure | None = None
    lost: Cause | None = None
    exit_code: int | None = None
    overdue: bool = False
    value: JsonValue = None
    result: dict[str, JsonValue] | None = None
    stack: messages.Stack | None = None
    saving: bool = False
    _stepped: float = 0.0

    def hear(self, message: OfRank | OfAgent) -> None:
        """Store a message's content."""
        age = 0.0
        match message:
            case messages.Stack():
                self.stack = message
                return  # this is not progress
            case messages.Progress(facts, age):
                self.progress = facts
                self._note_pace(message)
            case messages.Exited(exit_code, overdue):
                self.exit_code, self.overdue, self.state = exit_code, overdue, RankState.EXITED
            case messages.Returned(value, result):
                self.value, self.result = value, result
            case _:
                self._come_further(message)
        self.moved = max(self.moved, time.monotonic() - age)

    def _note_pace(self, pace: messages.Progress) -> None:
        now = time.monotonic()
        if pace.steps > self.pace.steps:
            if self.pace.steps:
                self.step_seconds = (now - self._stepped) / (pace.steps - self.pace.steps)
            self._stepped = now
        self.pace = pace

    def _come_further(self, message: OfRank | OfAgent) -> None:
        match message:
            case messages.Named(_, host, _):
                self.host = host
            case messages.Placed(host, device, run):
                self.host, self.device, self.run, self.state = host, device, run, RankState.RUNNING
            case messages.Done():
                self.state = RankState.DONE
            case messages.Saving():
                self.saving = True
            case _:
                pass

    @property
    def is_over(self) -> bool:
        """Whether it has exited, or the connection to its agent is lost."""
        return self.state in {RankState.EXITED, RankState.LOST}

    @property
    def has_ended_well(self) -> bool:
        """Whether its program has ended, and not by a failure."""
        return not self.failure and (self.state is RankState.DONE or self.exit_code == 0)

    @property
    def is_working(self) -> bool:
        """Whether its program still runs, as far as the monitor knows."""
        return self.state in {RankState.STARTING, RankState.RUNNING}


class AgentConnection:
    """An agent that is connected.

    Attributes:
        connection: The control connection.
        unread: The begin of a message whose end has not arrived.
        unsent: What the connection could not take yet.
        ranks: The ranks of this attempt that have sent messages through it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unread, self.unsent = bytearray(), bytearray()
        self.ranks: set[int] = set()


class Inbox:
    """A listening socket, and the messages that the agents of this attempt have sent to it.

    Args:
        listening: The socket, and the secret that an agent must prove to know before its messages are read.

    Attributes:
        where: Where the agents connect.
        ranks: The state of each rank that has sent a message.
        connections: The agents whose connection is open.
        failed: The ranks that have failed or were lost, in the order in which that became known.
        unfinished: The ranks that have neither exited nor been lost.
        working: The unfinished ranks whose program has not ended.
        moved: When a rank last made progress, in seconds of `time.monotonic`.
        received: How many bytes have arrived.
        input: The descriptor of the input for rank 0, which must not be a regular file; None if there is no input.
    """

    input: int | None = None

    def __init__(self, listening: Listening) -> None:
        self.where, self.host_timeout, self.received = listening.where, listening.host_timeout, 0
        self.selector = selectors.DefaultSelector()
        self.acceptor = Acceptor(listening.listener, listening.secret, self.selector, self._welcome)
        self.until = 0.0  # when `take` must return, in seconds of time.monotonic
        self.connections: set[AgentConnection] = set()
        self.asking: set[AgentConnection] = set()  # these wait for rank 0's address
        self.hungry: AgentConnection | None = None  # waits for a piece of the input
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Discard all earlier messages: the job is started (again). Agents whose connection is open are kept.

        Args:
            attempt: How often the job was started before.
        """
        self.attempt = attempt
        self.ranks: dict[int, RankSeen] = {}
        self.failed: list[int] = []
        self.unfinished: set[int] = set()
        self.working: set[int] = set()
        self.moved = 0.0
        self.ended: End | None = None
        self.meeting = ""  # where rank 0 listens for the others
        self.asking.clear()
        self._feed_nobody()
        for agent in self.connections:
            agent.ranks.clear()

    def take(self, patience: float) -> None:
        """Wait at most *patience* seconds for messages, and read those that have arrived.

        One call reads all waiting messages, for at most `_AT_ONCE` seconds. The caller checks every rank after each
        call; this way it does not do so after each message.
        """
        ready = self.selector.select(patience)
        self.until = time.monotonic() + _AT_ONCE
        while ready:
            for key, _ in ready:
                key.data()
            ready = self.selector.select(0) if time.monotonic() < self.until else []
        self.acceptor.tick()

    @contextmanager
    def awake_at(self, descriptor: int) -> Iterator[None]:
        """While the block runs, let `take` return as soon as *descriptor* can be read; then close it. -1 for none."""
        if descriptor < 0:
            yield
            return
        self.selector.register(descriptor, selectors.EVENT_READ, self._wake)
        try:
            yield
        finally:
            self.selector.unregister(descriptor)
            os.close(descriptor)

    def end(self, order: End) -> None:
        """Send *order* to every agent, also to those that connect later."""
        self.ended = order
        self.tell_all(order)

    def tell_all(self, order: Order) -> None:
        """Send *order* to every agent that can still be reached."""
        self.tell(self.agents, order)

    def tell(self, agents: Collection[AgentConnection], order: Order) -> None:
        """Send *order* to the *agents* that can still be reached."""
        line = messages.encode(order, self.attempt)
        for agent in agents:
            agent.unsent += line
            self._send(agent)

    @property
    def agents(self) -> set[AgentConnection]:
        """The agents that can be reached and whose ranks have sent messages."""
        return {agent for agent in self.connections if agent.ranks}

    @property
    def connected(self) -> set[int]:
        """The ranks whose agent can be reached."""
        return {rank for agent in self.connections for rank in agent.ranks}

    @property
    def on_lost_hosts(self) -> list[int]:
        """The ranks whose host does not answer."""
        return [rank for rank, seen in self.ranks.items() if seen.lost is Cause.LOST_HOST]

    def request_stacks(self) -> None:
        """Request the stacks of all ranks, and forget earlier ones: the ranks may have gone on."""
        for seen in self.ranks.values():
            seen.stack = None
        self.tell_all(messages.ShowStacks())

    def stacks(self) -> tuple[dict[int, messages.Stack], set[int]]:
        """Return the stacks that have arrived, by rank, and the ranks whose stacks can still arrive."""
        arrived = {rank: seen.stack for rank, seen in self.ranks.items() if seen.stack}
        return arrived, {rank for rank in self.connected if not self.ranks[rank].is_over} - set(arrived)

    def close(self) -> None:
        """Close all sockets."""
        for agent in self.connections:
            agent.connection.close()
        self.acceptor.close()
        self.selector.close()

    def close_files(self) -> None:
        """Close every socket in the selector, also those of others, in a process that was forked: none is for it."""
        for key in self.selector.get_map().values():
            key.fileobj.close()  # type: ignore[union-attr]  # in an agent only sockets are registered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        self.until = 0.0

    def _welcome(self, connection: socket.socket, _: int) -> None:
        notice_silence(connection, self.host_timeout)
        # Sending an order must have a time limit too; with this option the number of probes has no effect.
        wait = max(1.0, self.host_timeout - 0.5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * wait))
        agent = AgentConnection(connection)
        self.connections.add(agent)
        self.selector.register(connection, selectors.EVENT_READ, partial(self._read, agent))

    def _send(self, agent: AgentConnection) -> None:
        """Send what the connection can take now; the rest when it can take more."""
        try:
            del agent.unsent[: agent.connection.send(agent.unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the agent has exited: the next read says so
            agent.unsent.clear()
        if agent.unsent:
            either = selectors.EVENT_READ | selectors.EVENT_WRITE
            self.selector.modify(agent.connection, either, partial(self._serve, agent))

    def _serve(self, agent: AgentConnection) -> None:
        self.selector.modify(agent.connection, selectors.EVENT_READ, partial(self._read, agent))
        self._send(agent)
        self._read(agent)

    def _read(self, agent: AgentConnection) -> None:
        cause, message = Cause.LOST_AGENT, "its agent, the process that supervises it, was killed or has crashed"
        try:
            data = agent.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            data, cause = b"", Cause.LOST_HOST
            message = f"its connection broke: its host does not answer: {error.strerror}"
        self.received += len(data)
        for line in messages.take_lines(agent.unread, data):
            try:
                self._understand(agent, *messages.decode(line))
            except BadMessageError:
                data = b""
                break
        if not data or len(agent.unread) > LARGEST:
            self._hang_up(agent, cause, message)

    def _understand(self, agent: AgentConnection, rank: int, message: Message) -> None:
        """Store a message about a rank."""
        if isinstance(message, messages.Meeting):
            if rank == self.attempt:  # otherwise the message is of an earlier attempt
                self._meet(agent, message.text)
            return
        if rank < 0 or not isinstance(message, OfRank | OfAgent):
            raise BadMessageError(f"{type(message).__name__} of rank {rank}: nothing that an agent tells")
        if isinstance(message, messages.Named) and message.attempt == self.attempt:
            agent.ranks.add(rank)
            if self.ended:
                self.tell([agent], self.ended)
        if rank not in agent.ranks:
            return  # of an earlier attempt
        if isinstance(message, messages.NeedsInput):
            self._feed(agent)
        else:
            self._hear(rank, message)

    def _hear(self, rank: int, message: OfRank | OfAgent) -> None:
        seen = self.ranks.setdefault(rank, RankSeen())
        seen.hear(message)
        self._count(rank, seen)
        if isinstance(message, messages.Failed):
            self._fail(rank, seen, message.failure)

    def _count(self, rank: int, seen: RankSeen) -> None:
        """Update the sets of ranks after each message, so that they need not be computed again."""
        self.moved = max(self.moved, seen.moved)
        for ranks, is_in in ((self.unfinished, not seen.is_over), (self.working, seen.is_working)):
            (ranks.add if is_in else ranks.discard)(rank)

    def _fail(self, rank: int, seen: RankSeen, failure: Failure) -> None:
        if seen.failure is None:
            self.failed.append(rank)
        seen.failure = failure

    def _meet(self, agent: AgentConnection, text: str | None) -> None:
        """Store where rank 0 listens; answer requests (None) once that is known."""
        if text is None:
            self.asking.add(agent)
        else:
            self.meeting = text
        while self.meeting and self.asking:
            with suppress(OSError):
                self.asking.pop().connection.send(messages.encode(messages.Meeting(self.meeting), self.attempt))

    def _feed(self, agent: AgentConnection) -> None:
        """Send an agent the next piece of the input, as soon as there is one."""
        self._feed_nobody()
        if self.input is None:
            self.tell([agent], Input(""))
        else:
            self.hungry = agent
            self.selector.register(self.input, selectors.EVENT_READ, self._send_input)

    def _send_input(self) -> None:
        agent, piece = self.hungry, os.read(self.input or 0, _PIECE)
        self._feed_nobody()
        if agent:
            self.tell([agent], Input(b2a_base64(piece, newline=False).decode()))

    def _feed_nobody(self) -> None:
        if self.hungry and self.input is not None:
            self.selector.unregister(self.input)
        self.hungry = None

    def _hang_up(self, agent: AgentConnection, cause: Cause, message: str) -> None:
        if self.hungry is agent:
            self._feed_nobody()
        self.selector.unregister(agent.connection)
        self.connections.discard(agent)
        self.asking.discard(agent)
        for rank in agent.ranks:
            seen = self.ranks[rank]
            if seen.state is not RankState.EXITED:
                seen.state, seen.lost = RankState.LOST, cause
                self._count(rank, seen)
                if seen.failure is None:
                    self._fail(rank, seen, _lost(rank, seen, cause, message))
        agent.connection.close()


def _lost(rank: int, seen: RankSeen, cause: Cause, message: str) -> Failure:
    """Return the failure of a rank whose agent no longer sends messages."""
    phase, progress = split_phase(seen.progress)
    return Failure(
        cause=cause,
        message=message,
        exit_code=137 if cause is Cause.LOST_AGENT else 1,
        rank=rank,
        host=seen.host,
        device=seen.device,
        phase=phase,
        progress=progress,
    )
