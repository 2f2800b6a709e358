"""What the agents tell, whichever host they are on and whether or not it shares a file system."""

import os
import selectors
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from unilaunch import addresses, sockets
from unilaunch.handshake import new_secret
from unilaunch.monitor import messages
from unilaunch.monitor.connection import is_unanswered, notice_silence
from unilaunch.monitor.messages import LARGEST, BadMessageError, End, Message, OfAgent, OfRank, Order
from unilaunch.monitor.rank_seen import RankSeen, RankState
from unilaunch.output.failure import Cause, Failure

#: Seconds for which what comes in is taken before anything else is done.
_AT_ONCE = 0.02
_WAKE = "wake"


class Inbox:
    """A listening socket, and what the agents of this start have told over it.

    Args:
        listener: The socket.
        secret: What a caller must know before anything else is read.
        host_timeout: Seconds for which a host may be silent.

    Attributes:
        ranks: What is known of each rank that was heard.
        failed: The ranks that have failed or were lost, in the order in which that became known.
        unfinished: The ranks that have neither exited nor been lost.
        working: Those of them whose program has not ended.
        moved: When a rank last made progress, in seconds of `time.monotonic`.
    """

    def __init__(self, listener: socket.socket, secret: bytes, host_timeout: float) -> None:
        self.host_timeout = host_timeout
        self.selector = selectors.DefaultSelector()
        self.door = sockets.Door(listener, secret, self.selector)
        self.unread: dict[socket.socket, bytearray] = {}
        self.ranks_of: dict[socket.socket, set[int]] = {}
        self.asking: set[socket.socket] = set()  # those who wait for the meeting's word
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Forget what was told before: the job is started (again). Agents whose connection stands are kept.

        Args:
            attempt: How often it was started before.
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
        for ranks in self.ranks_of.values():
            ranks.clear()

    def take(self, patience: float) -> None:
        """Wait for at most *patience* seconds until something comes in, and take what has come by then.

        All of it, for `_AT_ONCE` seconds at most: then what is done after each call, and looks at every rank, is not
        done for each message of each rank.
        """
        ready = self.selector.select(patience)
        until = time.monotonic() + _AT_ONCE
        while ready:
            for key, _ in ready:
                if key.data is _WAKE:
                    until = 0.0
                elif callable(key.data):
                    key.data()
                elif key.data is not self.door:
                    self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
                elif agent := self.door.ready(key.fileobj):
                    self._welcome(agent[0])
            ready = self.selector.select(0) if time.monotonic() < until else []
        self.door.tick()

    @contextmanager
    def awake_at(self, process: int) -> Iterator[None]:
        """Let `take` wait no longer once *process*, a child of this one, has ended; while the block runs."""
        try:
            descriptor = os.pidfd_open(process)
        except (OSError, AttributeError):  # before Linux 5.3, or a Python built there: it is noticed after `take`
            yield
            return
        self.selector.register(descriptor, selectors.EVENT_READ, _WAKE)
        try:
            yield
        finally:
            self.selector.unregister(descriptor)
            os.close(descriptor)

    def end(self, order: End) -> None:
        """Send *order* to every agent, also to one that calls later."""
        self.ended = order
        self.tell_all(order)

    def tell_all(self, order: Order) -> None:
        """Send *order* to every agent that can still be reached."""
        self.tell(self.agents, order)

    def tell(self, agents: Collection[socket.socket], order: Order) -> None:
        """Send *order* to the *agents* that can still be reached."""
        line = messages.encode(order, self.attempt)
        for agent in agents:
            with suppress(OSError):  # a few bytes: they fit, or nobody is there to read them
                agent.send(line)

    @property
    def agents(self) -> set[socket.socket]:
        """The control connections that stand, of agents whose ranks were heard."""
        return {agent for agent, ranks in self.ranks_of.items() if ranks}

    @property
    def connected(self) -> set[int]:
        """The ranks whose agent can be reached."""
        return {rank for ranks in self.ranks_of.values() for rank in ranks}

    @property
    def unanswered(self) -> bool:
        """A host has not answered for some seconds: its connection will break, or it answers again."""
        return any(map(is_unanswered, self.agents))

    @property
    def on_lost_hosts(self) -> list[int]:
        """The ranks whose host does not answer."""
        return [rank for rank, seen in self.ranks.items() if seen.lost is Cause.LOST_HOST]

    @property
    def has_lost(self) -> bool:
        """Some rank is not heard of any more."""
        return any(seen.lost for seen in self.ranks.values())

    def close(self) -> None:
        """Hang up."""
        for connection in self.unread:
            connection.close()
        self.door.close()
        self.selector.close()

    def forget(self) -> None:
        """Close the sockets, in a process that was forked and does not know the selector."""
        for own in (self.door.listener, *self.door.strangers, *self.unread):
            own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _welcome(self, connection: socket.socket) -> None:
        notice_silence(connection, self.host_timeout)
        # An order too must not wait for ever; with this the number of probes no longer counts.
        wait = max(1.0, self.host_timeout - 1.5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * wait))
        self.unread[connection] = bytearray()
        self.ranks_of[connection] = set()
        self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        cause, reason = Cause.LOST_AGENT, "its processes have gone"
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            data, cause, reason = b"", Cause.LOST_HOST, f"its host does not answer: {error.strerror}"
        unread = self.unread[connection]
        searched = len(unread)
        unread += data
        while (end := unread.find(b"\n", searched)) >= 0:
            line, unread[: end + 1], searched = bytes(unread[:end]), b"", 0
            try:
                self._understand(connection, *messages.decode(line))
            except BadMessageError:
                data = b""
                break
        if not data or len(unread) > LARGEST:
            self._hang_up(connection, cause, reason)

    def _understand(self, agent: socket.socket, rank: int, message: Message) -> None:
        """Keep what is told of a rank."""
        if isinstance(message, messages.Meeting):
            if rank == self.attempt:  # or it is of an earlier start
                self._meet(agent, message.text)
            return
        if rank < 0 or not isinstance(message, OfRank | OfAgent):
            raise BadMessageError(f"{type(message).__name__} of rank {rank}: nothing that an agent tells")
        if isinstance(message, messages.Named) and message.attempt == self.attempt:
            self.ranks_of[agent].add(rank)
            if self.ended:
                self.tell([agent], self.ended)
        if rank not in self.ranks_of[agent]:
            return  # of an earlier attempt
        seen = self.ranks.setdefault(rank, RankSeen())
        seen.hear(message)
        self._count(rank, seen)
        if isinstance(message, messages.Failed):
            self._fail(rank, seen, message.failure)

    def _count(self, rank: int, seen: RankSeen) -> None:
        """Keep what is asked of all ranks after each message: it must not be counted anew each time."""
        self.moved = max(self.moved, seen.moved)
        for ranks, is_in in ((self.unfinished, not seen.is_over), (self.working, seen.is_working)):
            (ranks.add if is_in else ranks.discard)(rank)

    def _fail(self, rank: int, seen: RankSeen, failure: Failure) -> None:
        if seen.failure is None:
            self.failed.append(rank)
        seen.failure = failure

    def _meet(self, connection: socket.socket, text: str | None) -> None:
        """Keep where rank 0 listens; tell it whoever asks (None), once it is known."""
        if text is None:
            self.asking.add(connection)
        else:
            self.meeting = text
        while self.meeting and self.asking:
            with suppress(OSError):
                self.asking.pop().send(messages.encode(messages.Meeting(self.meeting), self.attempt))

    def _hang_up(self, connection: socket.socket, cause: Cause, reason: str) -> None:
        self.selector.unregister(connection)
        self.asking.discard(connection)
        del self.unread[connection]
        for rank in self.ranks_of.pop(connection):
            seen = self.ranks[rank]
            if seen.state is not RankState.EXITED:
                seen.state, seen.lost = RankState.LOST, cause
                self._count(rank, seen)
                if seen.failure is None:
                    self._fail(rank, seen, _lost(rank, seen, cause, reason))
        connection.close()


def _lost(rank: int, seen: RankSeen, cause: Cause, reason: str) -> Failure:
    """Return the failure of a rank of which nobody hears any more."""
    phase = seen.progress.get("phase")
    return Failure(
        cause=cause,
        message=f"it fell silent: {reason}",
        exit_code=137 if cause is Cause.LOST_AGENT else 1,
        rank=rank,
        host=seen.host,
        device=seen.device,
        phase=phase if isinstance(phase, str) else None,
        progress=seen.progress,
    )


@dataclass(frozen=True, slots=True)
class Listening:
    """Where agents can call.

    Attributes:
        listener: The socket.
        secret: What a caller must know.
        where: "ADDRESS,ADDRESS PORT SECRET SECONDS", for the callers.
    """

    listener: socket.socket
    secret: bytes
    where: str


def listen(hosts: Sequence[str], *, several: bool, host_timeout: float) -> Listening:
    """Listen for agents.

    Args:
        hosts: Hosts of the job: the address on the way to them is the first that an agent is to try.
        several: There are other hosts than this one; or else nobody from outside can call.
        host_timeout: Seconds for which a host may be silent.
    """
    listener = addresses.listen(0, several=several)
    secret = new_secret()
    own, port = addresses.own_addresses(hosts, several=several), listener.getsockname()[1]
    return Listening(listener, secret, f"{','.join(own)} {port} {secret.hex()} {host_timeout:g}")
