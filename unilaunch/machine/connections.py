"""Connections whose two ends prove to each other that both know the secret of this attempt; before, neither is trusted.

    caller -> listener: MAGIC, identity, challenge                             44 bytes
    listener -> caller: challenge, HMAC(secret, "listener" + what both know)   64 bytes
    caller -> listener: HMAC(secret, "caller" + what both know)                32 bytes
    listener -> caller: WELCOME                                                 1 byte

"What both know" is the listener's address and port as the caller used them, the caller's identity and both challenges.
The secret itself is never sent. The listener proves itself first, so a false listener learns nothing. The address and
port are part of each proof, so a false listener at another address or port cannot relay the proofs between the two. The
last byte tells the caller that it has been accepted. HMAC is that of RFC 2104 with SHA-256.

`Caller` and `Listener` work on bytes only. `Calls` connects to a listener, and `Door` accepts callers that know the
secret. In the selectors of a job's processes the `data` of an entry is the function to call when the entry is ready.
"""

import errno
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from resource import RLIMIT_NOFILE, getrlimit
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, DefaultSelector

from unilaunch.errors import RendezvousError
from unilaunch.machine.addresses import FAMILIES, plain
from unilaunch.machine.limits import files_for_strangers
from unilaunch.record import Record, field

_HELLO = struct.Struct("!8sI32s")
_MAGIC = b"unilnch1"
_PROOF_SIZE = 32
WELCOME = b"+"
#: Bytes of a listener's answer.
ANSWER_SIZE = 2 * _PROOF_SIZE


class NotProvenError(Exception):
    """The other end does not know the secret, or does not speak this protocol."""


def new_secret() -> bytes:
    """Return a random secret for one attempt. 32 bytes"""
    return os.urandom(32)


class Caller(Record, frozen=False):
    """The end that has connected.

    Args:
        secret: The secret of this attempt.
        place: The listener's address and port, as this end used them.
        identity: The identity of this end, for instance its rank.
    """

    secret: bytes
    place: str
    identity: int = 0
    challenge: bytes = field(default_factory=new_secret)

    @property
    def hello(self) -> bytes:
        """The bytes to send first."""
        return _HELLO.pack(_MAGIC, self.identity, self.challenge)

    def prove(self, answer: bytes) -> bytes:
        """Return this end's proof, to be sent once the listener has proven itself.

        Args:
            answer: The listener's answer. `ANSWER_SIZE` bytes

        Raises:
            NotProvenError: The listener does not know the secret.
        """
        challenge, proof = answer[:_PROOF_SIZE], answer[_PROOF_SIZE:]
        known = _known(self.place, self.identity, self.challenge, challenge)
        if not hmac.compare_digest(proof, _proof(self.secret, b"listener", known)):
            raise NotProvenError
        return _proof(self.secret, b"caller", known)


class Listener(Record, frozen=False):
    """The end that accepts one connection; it reads 76 bytes before the caller has proven itself.

    Attributes:
        identity: The caller's identity, once it has proven itself; None before.
    """

    secret: bytes
    place: str
    identity: int | None = None
    _claimed: int = 0
    _unread: bytes = b""
    _known: bytes = b""

    @property
    def is_unsure(self) -> bool:
        """Whether the caller has this end's proof and has not proven itself: it knows another secret, or has left."""
        return bool(self._known) and self.identity is None

    @property
    def wanted(self) -> int:
        """Most bytes to read next."""
        return (_PROOF_SIZE if self._known else _HELLO.size) - len(self._unread)

    def feed(self, data: bytes) -> bytes:
        """Process bytes from the caller, at most `wanted`; return the bytes to send to it, possibly none.

        Raises:
            NotProvenError: The caller does not know the secret, or does not speak this protocol.
        """
        self._unread += data
        if not self._known and not _MAGIC.startswith(self._unread[: len(_MAGIC)]):
            raise NotProvenError
        if self.wanted:
            return b""
        message, self._unread = self._unread, b""
        if not self._known:
            return self._answer(message)
        if not hmac.compare_digest(message, _proof(self.secret, b"caller", self._known)):
            raise NotProvenError
        self.identity = self._claimed
        return WELCOME

    def _answer(self, hello: bytes) -> bytes:
        _, self._claimed, theirs = _HELLO.unpack(hello)
        challenge = new_secret()
        self._known = _known(self.place, self._claimed, theirs, challenge)
        return challenge + _proof(self.secret, b"listener", self._known)


def _known(place: str, identity: int, of_caller: bytes, of_listener: bytes) -> bytes:
    return struct.pack("!I", identity) + of_caller + of_listener + place.encode()


def _proof(secret: bytes, role: bytes, known: bytes) -> bytes:
    return hmac.digest(secret, role + known, "sha256")


#: Seconds in which a caller must prove itself; other callers are handled meanwhile.
_PATIENCE = 10.0
#: Most callers that have not proven themselves, or fewer if this process may have few open files; one more closes the
#: oldest. Larger than a job's number of agents.
_STRANGERS = 1 << 14
_NAMED = 8  # most refused callers that are kept
#: Seconds without accepting callers when this process has no file descriptor left.
_PAUSE = 0.2
#: A silent connection is probed once a minute. It breaks when its host has not answered for a quarter of an hour, as it
#: does when data were sent. Firewalls forget a connection on which nothing is sent.
_PROBING = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 15}

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def _set_up(connection: socket.socket) -> None:
    """Send small messages at once, and notice a lost host also while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {"TCP_NODELAY": 1, **_PROBING}.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


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


class _Call(Record, frozen=False):
    """A connection on which the handshake has not ended yet."""

    caller: Caller
    connected: bool = False
    proven: bool = False
    answer: bytes = b""


class Calls:
    """Connects to several addresses at once, and keeps the first connection whose handshake succeeds.

    That connection is non-blocking, and is no longer registered in the selector.

    Args:
        places: Addresses and ports.
        secret: The secret of this attempt.
        identity: The caller's identity, for instance its rank.
        selector: The owner's selector.
        succeed: Called with the connection that is kept, when the other calls are closed.

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
        self.calls: dict[socket.socket, _Call] = {}
        self.unproven: set[str] = set()  # places at which a listener has answered that is not the one
        for address, port in places:
            try:
                connection = open_socket(address)
            except RendezvousError:
                if self.calls:
                    break
                raise
            if connection is None:
                continue
            connection.setblocking(False)
            connection.connect_ex((address, port))
            selector.register(connection, EVENT_WRITE, partial(self._hear, connection))
            self.calls[connection] = _Call(Caller(secret, f"{plain(address)} {port}", identity))

    def __len__(self) -> int:
        """Return the number of calls whose handshake has not ended."""
        return len(self.calls)

    @property
    def grace(self) -> float:
        """Further seconds to wait: a listener that has this end's proof may count the caller as accepted already."""
        return _PATIENCE if any(one.proven for one in self.calls.values()) else 0.0

    def _hear(self, connection: socket.socket) -> None:
        """Continue one call; when its handshake succeeds, keep its connection and close the other calls."""
        if connection not in self.calls:  # closed in this turn
            return
        try:
            if not self._go_on(connection, self.calls[connection]):
                return
        except BlockingIOError:
            return
        except NotProvenError:
            self.unproven.add(self.calls[connection].caller.place)
            self._give_up(connection)
            return
        except OSError:
            self._give_up(connection)
            return
        del self.calls[connection]
        self.selector.unregister(connection)
        self.close()
        _set_up(connection)
        self.succeed(connection)

    def _go_on(self, connection: socket.socket, call: _Call) -> bool:
        """Do the next step of the handshake; True after the last step."""
        if not call.connected:
            connection.send(call.caller.hello)
            call.connected = True
            self.selector.modify(connection, EVENT_READ, partial(self._hear, connection))
            return False
        if call.proven:
            if connection.recv(len(WELCOME)) != WELCOME:
                raise NotProvenError
            return True
        data = connection.recv(ANSWER_SIZE - len(call.answer))
        call.answer += data
        if not data or len(call.answer) == ANSWER_SIZE:
            connection.send(call.caller.prove(call.answer))
            call.proven = True
        return False

    def close(self) -> None:
        """Close every call."""
        for connection in list(self.calls):
            self._give_up(connection)

    def _give_up(self, connection: socket.socket) -> None:
        del self.calls[connection]
        self.selector.unregister(connection)
        connection.close()


def call(
    places: Iterable[tuple[str, int]], secret: bytes, identity: int, timeout: float, unproven: set[str] | None = None
) -> socket.socket | None:
    """Return a blocking connection to the first of *places* that proves itself within *timeout* seconds, or None.

    Args:
        places: Addresses and ports.
        secret: The secret of this attempt.
        identity: The caller's identity, for instance its rank.
        timeout: Seconds.
        unproven: Gets the places at which a listener answers that cannot prove itself.
    """
    deadline = time.monotonic() + timeout
    found: list[socket.socket] = []
    with DefaultSelector() as selector:
        calls = Calls(places, secret, identity, selector, found.append)
        try:
            while calls and (left := deadline + calls.grace - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    key.data()
        finally:
            calls.close()
    if unproven is not None:
        unproven |= calls.unproven
    connection = next(iter(found), None)
    if connection:
        connection.setblocking(True)
    return connection


class Door:
    """A listening socket that accepts only callers that know the secret; other callers do not delay them.

    Args:
        listener: The socket; its port is part of the proofs.
        secret: The secret of this attempt.
        selector: The owner's selector.
        welcome: Called with the connection and the identity of each caller that has proven itself. The connection is
            non-blocking, and is no longer registered in the selector.
        expected: The identities that are still expected, kept by the owner; others are closed without WELCOME: a caller
            that calls several addresses keeps the connection on which it is welcome. None: all are welcome.

    Attributes:
        refused: The addresses of some callers that speak this protocol and do not know the secret.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        selector: BaseSelector,
        welcome: Callable[[socket.socket, int], None],
        expected: set[int] | None = None,
    ) -> None:
        self.listener, self.secret, self.selector = listener, secret, selector
        self.welcome, self.expected = welcome, expected
        self.port = int(listener.getsockname()[1])
        self.strangers: dict[socket.socket, tuple[Listener, float]] = {}  # oldest first, each with its deadline
        self.closed_until: float | None = None
        self.refused: set[str] = set()
        listener.setblocking(False)
        selector.register(listener, EVENT_READ, self._accept_all)

    def tick(self) -> None:
        """Close the connections of callers that have not proven themselves in time. The owner calls it repeatedly."""
        now = time.monotonic()
        while self.strangers and now > next(iter(self.strangers.values()))[1]:
            self._send_away(next(iter(self.strangers)))
        if self.closed_until is not None and now > self.closed_until:
            self.closed_until = None
            self.selector.register(self.listener, EVENT_READ, self._accept_all)

    def close(self) -> None:
        """Close the connections of all callers that have not proven themselves, and the listening socket."""
        for stranger in list(self.strangers):
            self._send_away(stranger)
        if self.closed_until is None:
            self.selector.unregister(self.listener)
        self.listener.close()

    def _accept_all(self) -> None:
        while self._accept():
            pass

    def _accept(self) -> bool:
        """Accept one connection; False if there is none, or no room for it."""
        most = files_for_strangers(_STRANGERS)
        if len(self.strangers) >= most:
            self._send_away(next(iter(self.strangers)))
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._make_room()
            return False
        connection.setblocking(False)
        place = f"{plain(connection.getsockname()[0])} {self.port}"
        self.strangers[connection] = Listener(self.secret, place), time.monotonic() + _PATIENCE
        self.selector.register(connection, EVENT_READ, partial(self._hear, connection))
        return len(self.strangers) < most

    def _make_room(self) -> None:
        """Free a file descriptor: close the oldest caller that is not proven, or pause accepting if there is none."""
        if self.strangers:
            self._send_away(next(iter(self.strangers)))
        else:
            self.selector.unregister(self.listener)
            self.closed_until = time.monotonic() + _PAUSE

    def _hear(self, stranger: socket.socket) -> None:
        if stranger not in self.strangers:  # closed in this turn
            return
        greeting, _ = self.strangers[stranger]
        try:
            data = stranger.recv(greeting.wanted)
            answer = greeting.feed(data)
            if greeting.identity is None or self.expected is None or greeting.identity in self.expected:
                stranger.send(answer)  # a new connection has room for these 64 bytes
            else:
                data = b""
        except BlockingIOError:
            return
        except (OSError, NotProvenError):
            data = b""
        if not data:
            self._note_refused(stranger, greeting)
            self._send_away(stranger)
        elif greeting.identity is not None:
            del self.strangers[stranger]
            self.selector.unregister(stranger)
            _set_up(stranger)
            self.welcome(stranger, greeting.identity)

    def _note_refused(self, stranger: socket.socket, greeting: Listener) -> None:
        with suppress(OSError):
            if greeting.is_unsure and len(self.refused) < _NAMED:
                self.refused.add(plain(stranger.getpeername()[0]))

    def _send_away(self, stranger: socket.socket) -> None:
        del self.strangers[stranger]
        self.selector.unregister(stranger)
        stranger.close()
