"""The control connection of an agent to the monitor, which runs in the launching process or in rank 0's agent.

This is the agent's end, and where it leads; the monitor's end is in `unilaunch.monitor.inbox`.
"""

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector

from unilaunch.errors import RendezvousError
from unilaunch.machine import addresses
from unilaunch.machine.connections import Dials, new_secret
from unilaunch.machine.limits import probes
from unilaunch.monitor.messages import BadMessageError, Message, decode, encode, take_lines
from unilaunch.record import Record

#: Bytes of the kernel's tcp_info, and three offsets in it: of the number of unacknowledged segments, and of the
#: milliseconds since the last data and the last acknowledgement arrived.
_INFO, _UNACKED, _LAST_DATA, _LAST_ACK = 60, 24, 52, 56
#: Seconds without an acknowledgement after which a host may be lost: the kernel sends one probe each second.
WORRY = 3.0
_PROBE = 1.0  # seconds for the answer to a connection attempt
_TRIES, _PAUSE = 5, 0.5  # connection attempts before the monitor counts as lost, and seconds between two
#: Errors with which the kernel reports that the other host does not answer.
_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}
#: Results of a connection attempt that show that the other host has answered.
_ANSWERS = {0, errno.EISCONN, errno.ECONNREFUSED}


class Listening(Record):
    """Where agents can connect.

    Attributes:
        listener: The socket.
        secret: The secret that an agent must know.
        host_timeout: Seconds for which a host may be silent.
        where: "ADDRESS,ADDRESS PORT SECRET SECONDS", for the agents; "" if they have been told.
    """

    listener: socket.socket
    secret: bytes
    host_timeout: float
    where: str = ""


def listen(hosts: Sequence[str], *, several: bool, host_timeout: float, key: bytes | None = None) -> Listening:
    """Listen for agents.

    Args:
        hosts: Hosts of the job: agents first try this host's address on the route to them.
        several: Whether there are other hosts; if not, only processes of this host can connect.
        host_timeout: Seconds for which a host may be silent.
        key: The secret that agents must know; None for a random one.
    """
    listener = addresses.listen(0, several=several)
    secret = key or new_secret()
    own = addresses.own_addresses(hosts, several=several)
    where = write_where(own, listener.getsockname()[1], secret, host_timeout)
    return Listening(listener, secret, host_timeout, where)


def write_where(places: Iterable[str], port: int, secret: bytes, host_timeout: float) -> str:
    """Return the value of the variable MONITOR, from which agents read where the monitor listens."""
    return f"{','.join(places)} {port} {secret.hex()} {host_timeout:g}"


def read_where(where: str) -> tuple[list[tuple[str, int]], bytes, float]:
    """Return the addresses with ports, the secret and the host timeout from the variable MONITOR."""
    places, port, secret, seconds = where.split()
    return [(address, int(port)) for address in places.split(",")], bytes.fromhex(secret), float(seconds)


def notice_silence(connection: socket.socket, host_timeout: float) -> None:
    """Break an idle connection when the other host has not answered for *host_timeout* seconds.

    The kernel sends a probe each second, or a few seconds apart if there would be too many, and one answer is enough.
    Open MPI gets a second more, since it must notice a lost host after unilaunch.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause, number = probes(host_timeout)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", pause), ("TCP_KEEPCNT", max(1, number - 1))):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def is_unanswered(connection: socket.socket) -> bool:
    """Return whether nothing has arrived from the other host for some seconds: it may be lost.

    Data counts as well: the kernel sends no probe while data arrives, and then nothing is acknowledged.
    """
    return min(_read_info(connection, _LAST_ACK), _read_info(connection, _LAST_DATA)) > 1000 * WORRY


def _read_info(connection: socket.socket, offset: int) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
    return int(struct.unpack_from("=I", info, offset)[0])


class Connection:
    """The control connection; it never blocks: bytes that cannot be sent yet are kept here.

    Args:
        where: "ADDRESS,ADDRESS PORT SECRET SECONDS". All addresses are tried at once; the first that proves that it
            knows the secret is used. The connection breaks when the other host has not answered for SECONDS.
        selector: The agent's selector.
        order: Called with each message that arrives, and with the number of the attempt that it belongs to.
        broken: Called with the reason when an open connection breaks.

    Attributes:
        host_lost: Whether it broke because the other host does not answer.
    """

    def __init__(
        self,
        where: str,
        selector: BaseSelector,
        order: Callable[[int, Message], None],
        broken: Callable[[str], None],
    ) -> None:
        self.places, self.secret, self.host_timeout = read_where(where)
        self.answered_at = time.monotonic()
        self.probe: socket.socket | None = None
        self.probed_at = 0.0
        self.selector, self.order, self.broken = selector, order, broken
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.connection: socket.socket | None = None
        self.host_lost = False
        self.tries, self.called_at = 0, 0.0
        self._call()

    @property
    def open(self) -> bool:
        """Whether it is open, or may still be opened."""
        return bool(self.connection or self.dials or 0 < self.tries < _TRIES)

    def _call(self) -> None:
        self.tries, self.called_at = self.tries + 1, time.monotonic()
        self.dials = Dials((), self.secret, 0, self.selector, self._open)
        with suppress(RendezvousError):  # no file descriptor is left: the next try may find one
            self.dials = Dials(self.places, self.secret, 0, self.selector, self._open)

    def _open(self, connection: socket.socket) -> None:
        notice_silence(connection, self.host_timeout)
        self.connection, self.tries = connection, 0
        self.selector.register(connection, EVENT_READ, self._ready)
        self._flush()

    def send(self, message: Message, rank: int) -> None:
        """Send a message of a rank or its agent as soon as the socket can take it."""
        if self.open:
            self.outgoing += encode(message, rank)
            self._flush()

    def close(self) -> None:
        """Close its sockets, in a process that has been forked from the agent and does not know its selector."""
        for own in (self.connection, self.probe, *self.dials.dials):
            if own:
                own.close()

    def look(self) -> None:
        """Break the connection when sent data has not been acknowledged for the whole host timeout.

        The kernel sends unacknowledged data again at intervals that double: after 10 seconds of silence the next
        attempt may be 5 seconds away. So this method also makes a connection attempt to the host once a second.
        """
        if not self.connection:
            if self.open and not self.dials and time.monotonic() - self.called_at > _PAUSE:
                self._call()
            return
        try:
            now, peer = time.monotonic(), self.connection.getpeername()
        except OSError:  # it has just broken: the next turn reads the error
            return
        waits = _read_info(self.connection, _UNACKED) > 0 and is_unanswered(self.connection)  # sent, not acknowledged
        if not waits or (self.probe and self.probe.connect_ex(peer) in _ANSWERS):
            self.answered_at = now
            self._close_probe()
        elif now - self.probed_at > _PROBE:
            late = self.probe and now - self.answered_at > self.host_timeout - WORRY
            self._close_probe()
            if late:
                self.host_lost = True
                self._end("no answer")
                return
            self.probe, self.probed_at = socket.socket(self.connection.family, socket.SOCK_STREAM), now
            self.probe.setblocking(False)
            self.probe.connect_ex(peer)

    def _close_probe(self) -> None:
        if self.probe:
            self.probe.close()
            self.probe = None

    def _ready(self) -> None:
        self._read()
        self._flush()

    def _read(self) -> None:
        connection = self.connection
        if connection is None:
            return
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(error)
            return
        if not data:
            self._end("it was closed")
            return
        for line in take_lines(self.incoming, data):
            with suppress(BadMessageError):
                self.order(*decode(line))

    def _flush(self) -> None:
        if not self.connection:
            return
        try:
            while self.outgoing:
                del self.outgoing[: self.connection.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._break(error)
            return
        self.selector.modify(self.connection, EVENT_READ | (EVENT_WRITE if self.outgoing else 0), self._ready)

    def _break(self, error: OSError) -> None:
        self.host_lost = error.errno in _UNREACHABLE
        self._end(error.strerror or str(error))

    def _end(self, reason: str) -> None:
        if self.connection:
            self.selector.unregister(self.connection)
            self.connection.close()
            self.connection = None
            self.broken(reason)
