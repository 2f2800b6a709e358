"""Connections whose two ends prove to each other that both know the secret of this attempt; before, neither is trusted.

    caller -> listener: MAGIC, identity, challenge                             44 bytes
    listener -> caller: challenge, HMAC(secret, "listener" + what both know)   64 bytes
    caller -> listener: HMAC(secret, "caller" + what both know)                32 bytes
    listener -> caller: WELCOME                                                 1 byte

"What both know" is the listener's address and port as the caller used them, the caller's identity and both challenges.
The secret itself is never sent. The listener proves itself first, so a false listener learns nothing. The address and
port are part of each proof, so a false listener at another address or port cannot relay the proofs between the two. The
last byte tells the caller that it has been accepted. HMAC is that of RFC 2104 with SHA-256.

`Dialer` and `Listener` are the two ends on bytes only. `Dials` and `dial` connect to a listener, and `Acceptor` accepts
callers. In the selectors of a job's processes the `data` of an entry is the function to call when the entry is ready.
"""

import errno
import hmac
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from resource import RLIMIT_NOFILE, getrlimit
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, DefaultSelector

from unilaunch.errors import RendezvousError
from unilaunch.machine.addresses import FAMILIES, plain
from unilaunch.machine.limits import files_for_strangers
from unilaunch.overriding import override

_HELLO = struct.Struct("!8sI32s")
_MAGIC = b"unilnch1"
_PROOF_SIZE = 32
WELCOME = b"+"

#: Seconds in which a caller must prove itself; other callers are handled meanwhile.
_PATIENCE = 10.0
#: Most callers that have not proven themselves, or fewer if this process may have few open files; one more closes the
#: oldest. Larger than a job's number of agents.
_UNPROVEN = 1 << 14
_NAMED = 8  # most refused callers that are kept
#: Seconds without accepting callers when this process has no file descriptor left.
_PAUSE = 0.2
#: A silent connection is probed once a minute. It breaks when its host has not answered for a quarter of an hour, as it
#: does when data were sent. Firewalls forget a connection on which nothing is sent.
_PROBING = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 15}

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class NotProvenError(Exception):
    """The other end does not know the secret, does not speak this protocol, is not expected, or has hung up."""


def new_secret() -> bytes:
    """Return a random secret for one attempt. 32 bytes"""
    return os.urandom(32)


class _Handshake(ABC):
    """One end of a handshake, on bytes only.

    Args:
        secret: The secret of this attempt.
        place: The listener's address and port, as this end knows them.
        wanted: Size of the first message from the other end.

    Attributes:
        wanted: Most bytes to read next; 0 when the handshake has succeeded.
    """

    def __init__(self, secret: bytes, place: str, wanted: int) -> None:
        self.secret, self.place, self.wanted = secret, place, wanted
        self._received = b""
        self._known = b""  # what both ends know, once this end knows it

    def feed(self, data: bytes) -> bytes:
        """Process bytes from the other end, at most `wanted`, or none if it has hung up; return the bytes to send.

        Raises:
            NotProvenError: The other end has not proven itself.
        """
        if not data:
            raise NotProvenError
        self._received += data
        self.wanted -= len(data)
        if self.wanted:
            return b""
        message, self._received = self._received, b""
        self.wanted, answer = self._answer(message)
        return answer

    @abstractmethod
    def _answer(self, message: bytes) -> tuple[int, bytes]:
        """Return the size of the next message from the other end, and the answer to a complete *message*."""

    def _learn(self, identity: int, of_caller: bytes, of_listener: bytes) -> None:
        self._known = struct.pack("!I", identity) + of_caller + of_listener + self.place.encode()

    def _proof(self, role: bytes) -> bytes:
        return hmac.digest(self.secret, role + self._known, "sha256")

    def _check(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise NotProvenError


class Dialer(_Handshake):
    """The end that has connected; it sends `hello` first.

    Args:
        secret: The secret of this attempt.
        place: The listener's address and port, as this end used them.
        identity: The identity of this end, for instance its rank.
    """

    def __init__(self, secret: bytes, place: str, identity: int = 0) -> None:
        super().__init__(secret, place, 2 * _PROOF_SIZE)
        self.identity, self.challenge = identity, new_secret()

    @property
    def hello(self) -> bytes:
        """The bytes to send first."""
        return _HELLO.pack(_MAGIC, self.identity, self.challenge)

    @property
    def has_proven_itself(self) -> bool:
        """Whether this end has proven itself: the listener may count it as accepted already."""
        return bool(self._known)

    @override
    def _answer(self, message: bytes) -> tuple[int, bytes]:
        if self._known:
            if message != WELCOME:
                raise NotProvenError
            return 0, b""
        self._learn(self.identity, self.challenge, message[:_PROOF_SIZE])
        self._check(message[_PROOF_SIZE:], b"listener")
        return len(WELCOME), self._proof(b"caller")


class Listener(_Handshake):
    """The end that accepts one connection; it reads 76 bytes before the caller has proven itself.

    Args:
        secret: The secret of this attempt.
        place: The listener's address and port, as this end knows them.
        expected: The identities that are accepted; None: each.

    Attributes:
        identity: The caller's identity, once it has proven itself; None before.
    """

    def __init__(self, secret: bytes, place: str, expected: Collection[int] | None = None) -> None:
        super().__init__(secret, place, _HELLO.size)
        self.expected = expected
        self.identity: int | None = None
        self._claimed = 0

    @property
    def is_unsure(self) -> bool:
        """Whether the caller has this end's proof and has not proven itself: it knows another secret, or has left."""
        return bool(self._known) and self.identity is None

    @override
    def _answer(self, message: bytes) -> tuple[int, bytes]:
        if self._known:
            self._check(message, b"caller")
            self.identity = self._claimed
            if self.expected is not None and self.identity not in self.expected:
                raise NotProvenError
            return 0, WELCOME
        magic, self._claimed, theirs = _HELLO.unpack(message)
        if magic != _MAGIC:
            raise NotProvenError
        challenge = new_secret()
        self._learn(self._claimed, theirs, challenge)
        return _PROOF_SIZE, challenge + self._proof(b"listener")


class Dials:
    """Connects to several addresses at once, and keeps the first connection whose handshake succeeds.

    That connection is non-blocking, and is no longer registered in the selector.

    Args:
        places: Addresses and ports.
        secret: The secret of this attempt.
        identity: The caller's identity, for instance its rank.
        selector: The owner's selector.
        succeed: Called with the connection that is kept, when the other calls are closed.

    Attributes:
        dials: The connections whose handshake has not ended.
        unproven: The places at which a listener has answered that does not know the secret, or does not accept this
            identity.

    Raises:
        RendezvousError: There is no file descriptor left.
    """

    def __init__(
        self,
        places: Iterable[tuple[str, int]],
        secret: bytes,
        identity: int,
        selector: BaseSelector,
        succeed: Callable[[socket.socket], None],
    ) -> None:
        self.selector, self.succeed = selector, succeed
        self.dials: dict[socket.socket, Dialer] = {}
        self.unproven: set[str] = set()
        for address, port in places:
            try:
                connection = open_socket(address)
            except RendezvousError:
                if self.dials:
                    break
                raise
            if connection is None:
                continue
            connection.setblocking(False)
            connection.connect_ex((address, port))
            selector.register(connection, EVENT_WRITE, partial(self._go_on, connection, is_new=True))
            self.dials[connection] = Dialer(secret, f"{plain(address)} {port}", identity)

    def __len__(self) -> int:
        """Return the number of calls whose handshake has not ended."""
        return len(self.dials)

    @property
    def grace(self) -> float:
        """Further seconds to wait: a listener that has this end's proof may count the caller as accepted already."""
        return _PATIENCE if any(caller.has_proven_itself for caller in self.dials.values()) else 0.0

    def close(self) -> None:
        """Close every call."""
        for connection in list(self.dials):
            self._give_up(connection)

    def _go_on(self, connection: socket.socket, *, is_new: bool) -> None:
        """Do the next step of one call; after the last step keep its connection, and close the other calls."""
        if connection not in self.dials:  # closed in this turn
            return
        caller = self.dials[connection]
        try:
            if message := caller.hello if is_new else caller.feed(connection.recv(caller.wanted)):
                connection.send(message)
        except BlockingIOError:
            return
        except (NotProvenError, OSError) as error:
            if isinstance(error, NotProvenError):
                self.unproven.add(caller.place)
            self._give_up(connection)
            return
        if is_new:
            self.selector.modify(connection, EVENT_READ, partial(self._go_on, connection, is_new=False))
        elif not caller.wanted:
            del self.dials[connection]
            self.selector.unregister(connection)
            self.close()
            _set_up(connection)
            self.succeed(connection)

    def _give_up(self, connection: socket.socket) -> None:
        del self.dials[connection]
        self.selector.unregister(connection)
        connection.close()


def dial(
    places: Iterable[tuple[str, int]], secret: bytes, identity: int, timeout: float, unproven: set[str] | None = None
) -> socket.socket | None:
    """Return a blocking connection to the first of *places* that proves itself within *timeout* seconds, or None.

    Args:
        places: Addresses and ports.
        secret: The secret of this attempt.
        identity: The caller's identity, for instance its rank.
        timeout: Seconds.
        unproven: Gets the places at which a listener answers that cannot prove itself.

    Raises:
        RendezvousError: There is no file descriptor left.
    """
    deadline = time.monotonic() + timeout
    connections: list[socket.socket] = []
    with DefaultSelector() as selector:
        dials = Dials(places, secret, identity, selector, connections.append)
        try:
            while dials and (left := deadline + dials.grace - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    key.data()
        finally:
            dials.close()
    if unproven is not None:
        unproven |= dials.unproven
    for connection in connections:
        connection.setblocking(True)
        return connection
    return None


class Acceptor:
    """Accepts the callers of a listening socket that know the secret; other callers do not delay them.

    Args:
        listener: The socket; its port is part of the proofs.
        secret: The secret of this attempt.
        selector: The owner's selector.
        accept: Called with the connection and the identity of each caller that has proven itself. The connection is
            non-blocking, and is no longer registered in the selector.
        expected: The identities that are still expected; the owner removes one when its caller is accepted. The
            connections of other identities are closed without WELCOME: so a rank that calls several addresses keeps the
            same connection as the acceptor. None: each identity is accepted, any number of times.

    Attributes:
        callers: The connections of callers that have not proven themselves, each with its handshake and its deadline,
            the oldest first.
        refused: The addresses of some callers that speak this protocol and do not know the secret.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        selector: BaseSelector,
        accept: Callable[[socket.socket, int], None],
        expected: Collection[int] | None = None,
    ) -> None:
        self.listener, self.secret, self.selector = listener, secret, selector
        self.accept, self.expected = accept, expected
        self.port = int(listener.getsockname()[1])
        self.callers: dict[socket.socket, tuple[Listener, float]] = {}
        self.paused_until: float | None = None
        self.refused: set[str] = set()
        listener.setblocking(False)
        selector.register(listener, EVENT_READ, self._take_all)

    def tick(self) -> None:
        """Close the connections of callers that have not proven themselves in time. The owner calls it repeatedly."""
        now = time.monotonic()
        while self.callers and now > next(iter(self.callers.values()))[1]:
            self._close_oldest()
        if self.paused_until is not None and now > self.paused_until:
            self.paused_until = None
            self.selector.register(self.listener, EVENT_READ, self._take_all)

    def close(self) -> None:
        """Close the connections of all callers that have not proven themselves, and the listening socket."""
        while self.callers:
            self._close_oldest()
        if self.paused_until is None:
            self.selector.unregister(self.listener)
        self.listener.close()

    def _take_all(self) -> None:
        while self._take():
            pass

    def _take(self) -> bool:
        """Take one connection; False if there is none, or no room for it."""
        most = files_for_strangers(_UNPROVEN)
        if len(self.callers) >= most:
            self._close_oldest()
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._make_room()
            return False
        connection.setblocking(False)
        handshake = Listener(self.secret, f"{plain(connection.getsockname()[0])} {self.port}", self.expected)
        self.callers[connection] = handshake, time.monotonic() + _PATIENCE
        self.selector.register(connection, EVENT_READ, partial(self._go_on, connection))
        return len(self.callers) < most

    def _make_room(self) -> None:
        """Free a file descriptor: close the oldest caller that is not proven, or pause if there is none."""
        if self.callers:
            self._close_oldest()
        else:
            self.selector.unregister(self.listener)
            self.paused_until = time.monotonic() + _PAUSE

    def _go_on(self, connection: socket.socket) -> None:
        """Do the next step of one caller's handshake; after the last step hand its connection to the owner."""
        if connection not in self.callers:  # closed in this turn
            return
        handshake, _ = self.callers[connection]
        try:
            connection.send(handshake.feed(connection.recv(handshake.wanted)))  # it has room for these 64 bytes
        except BlockingIOError:
            return
        except (OSError, NotProvenError):
            self._note_refused(connection, handshake)
            self._forget(connection)
            connection.close()
            return
        if handshake.identity is not None:
            self._forget(connection)
            _set_up(connection)
            self.accept(connection, handshake.identity)

    def _note_refused(self, connection: socket.socket, handshake: Listener) -> None:
        with suppress(OSError):
            if handshake.is_unsure and len(self.refused) < _NAMED:
                self.refused.add(plain(connection.getpeername()[0]))

    def _close_oldest(self) -> None:
        oldest = next(iter(self.callers))
        self._forget(oldest)
        oldest.close()

    def _forget(self, connection: socket.socket) -> None:
        del self.callers[connection]
        self.selector.unregister(connection)


def open_socket(address: str) -> socket.socket | None:
    """Return a socket for connections to *address*; None if this host does not have its IP version.

    Raises:
        RendezvousError: This process, or this host, has no file descriptor left.
    """
    try:
        return socket.socket(FAMILIES[":" in address], socket.SOCK_STREAM)
    except OSError as error:
        if error.errno in _NO_ROOM:
            limit = getrlimit(RLIMIT_NOFILE)[0]
            raise RendezvousError(
                f"no socket for {address}: {error.strerror}: ulimit -n allows {limit} open files: raise it"
            ) from None
        return None


def _set_up(connection: socket.socket) -> None:
    """Send small messages at once, and notice a lost host also while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {"TCP_NODELAY": 1, **_PROBING}.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
