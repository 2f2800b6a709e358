"""The board of a start, where ranks find each other: rank 0 posts its address and a secret, the others read them.

A board is the process of `launch` (`LaunchBoard`), the launcher's key-value store (`pmix`, `pmi`) or, where no store
can be used, a file that only this user can read (`secret_file`). With what they read there, `tcp` connects the ranks.
"""

import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import product
from typing import Self

from unilaunch.connections import sockets
from unilaunch.connections.handshake import new_secret
from unilaunch.errors import RendezvousError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.machine import addresses
from unilaunch.monitor import messages
from unilaunch.monitor.connection import read_where
from unilaunch.monitor.messages import BadMessageError, decode, encode
from unilaunch.overriding import override
from unilaunch.record import Record

#: Below the range from which Linux assigns free ports.
_PORTS = range(20000, 32768)
_TRIES = 16
_TRY = 5.0  # seconds for one try to reach the launching process
_PATIENCE, _PAUSE = 30.0, 0.2  # seconds for all tries of rank 0, and between two tries
_LARGEST = 4096  # bytes of its answer


class Meeting(Record):
    """Where rank 0 listens, and the secret that a rank needs to connect.

    Attributes:
        places: Addresses and ports, the likeliest first.
        secret: The secret of this attempt.
    """

    places: Sequence[tuple[str, int]]
    secret: bytes

    @property
    def text(self) -> str:
        """The meeting as one word without spaces, for a launcher's store: "10.0.0.1;PORT,fd00::1;PORT/SECRET"."""
        return ",".join(f"{address};{port}" for address, port in self.places) + f"/{self.secret.hex()}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the meeting that `text` describes.

        Raises:
            ValueError: The text does not describe a meeting.
        """
        places, _, secret = text.partition("/")
        pairs = [place.split(";") for place in places.split(",")]
        return cls([(address, int(port)) for address, port in pairs], bytes.fromhex(secret))


class Board(ABC):
    """The place where the ranks of one attempt find each other, for one rank."""

    #: What a user can check if a rank did not find rank 0 on this board.
    advice: str

    @abstractmethod
    def post(self) -> tuple[socket.socket, bytes]:
        """Listen, and post the address for the other ranks; only rank 0 calls it. Return the socket and the secret.

        Raises:
            RendezvousError: The address cannot be posted.
        """

    @abstractmethod
    def read(self) -> Meeting | None:
        """Return what rank 0 has posted; None if it has posted nothing yet. The other ranks call it repeatedly."""

    def close(self) -> None:  # noqa: B027  (a launcher's store is removed with the job)
        """Remove what was posted. Every rank calls it when the ranks are connected, or when connecting has failed."""

    def finish(self) -> None:  # noqa: B027  (most boards need no such step)
        """End the connection to the launcher, at the end of the process."""


def open_meeting(found: LauncherInfo) -> tuple[socket.socket, Meeting]:
    """Listen on a free port, with a new secret, at every address at which the job's hosts may reach this host."""
    several = not found.one_host
    listener = addresses.listen(0, several=several)
    port = int(listener.getsockname()[1])
    own = addresses.own_addresses(found.rank_0_hosts, several=several)
    return listener, Meeting([(address, port) for address in own], new_secret())


class StoreBoard(Board):
    """A launcher's store: rank 0's text reaches the other ranks in one exchange of all ranks."""

    found: LauncherInfo
    _meeting: Meeting | None = None

    @abstractmethod
    def exchange(self, text: str) -> str:
        """Return rank 0's *text*; that of other ranks is "". All ranks must call it, once."""

    @override
    def post(self) -> tuple[socket.socket, bytes]:
        listener, meeting = open_meeting(self.found)
        self.exchange(meeting.text)
        return listener, meeting.secret

    @override
    def read(self) -> Meeting:
        self._meeting = self._meeting or Meeting.read(self.exchange(""))
        return self._meeting


class PublicBoard(Board):
    """A board without a store: the ports are computed from the run's name, the secret from that name and a key.

    Rank 0 binds the first free port of a few. Without a key other users can guess the secret, so it is used only if the
    user asks for it.

    Args:
        found: The launcher info.
        key: A secret that only the ranks of the job have; "" for none.
    """

    def __init__(self, found: LauncherInfo, key: str = "") -> None:
        self.several = not found.one_host
        self.hosts = found.rank_0_hosts if self.several else (addresses.loopback(),)
        self.name = sha256(f"unilaunch {found.run_id}".encode()).digest()
        self.secret = sha256(self.name + key.encode()).digest()
        self.advice = f"at {' or '.join(self.hosts)}, ports {self.ports}: was rank 0 started, and is that its host?"

    @property
    def ports(self) -> list[int]:
        """The ports at which rank 0 may listen, the likeliest first."""
        words = struct.unpack(f"!{_TRIES}H", self.name[: 2 * _TRIES])
        return [_PORTS[word % len(_PORTS)] for word in words]

    @override
    def post(self) -> tuple[socket.socket, bytes]:
        for port in self.ports:
            try:
                return addresses.listen(port, several=self.several), self.secret
            except OSError:
                continue
        raise RendezvousError(f"rank 0 cannot listen on any of the ports {self.ports}: all of them are taken")

    @override
    def read(self) -> Meeting | None:
        found = [address for host in self.hosts for address in addresses.resolve(host)]
        return Meeting(list(product(found, self.ports)), self.secret)


class LaunchBoard(Board):
    """A rank's connection to the launching process.

    Args:
        found: The launcher info.
        where: Where the launching process listens, as in `variables.MONITOR`.
        attempt: How often the job was started before.
    """

    def __init__(self, found: LauncherInfo, where: str, attempt: int = 0) -> None:
        self.found, self.attempt = found, attempt
        self.places, self.secret, _ = read_where(where)
        self.connection: socket.socket | None = None
        self.where = ", ".join(f"{address} port {port}" for address, port in self.places)
        how = "was rank 0 started, and does that process still run?"
        self.advice = f"through `unilaunch launch` at {self.where}: {how}"

    @override
    def post(self) -> tuple[socket.socket, bytes]:
        listener, meeting = open_meeting(self.found)
        deadline = time.monotonic() + _PATIENCE
        while not self._send(meeting.text):
            if time.monotonic() < deadline:
                time.sleep(_PAUSE)
                continue
            listener.close()
            raise RendezvousError(
                f"rank 0 does not reach the launching process at {self.where}: does it still run, and can this host "
                "reach that one?"
            )
        return listener, meeting.secret

    @override
    def read(self) -> Meeting | None:
        if not (connection := self._send(None)):
            return None
        with suppress(OSError, BadMessageError), connection.makefile("rb") as answer:
            match decode(answer.readline(_LARGEST)):
                case _, messages.Meeting(str(text)):
                    return Meeting.read(text)
        return None

    @override
    def close(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def _send(self, text: str | None) -> socket.socket | None:
        """Send where rank 0 listens, or request it with None; return the connection, or None if there is none."""
        self.close()
        self.connection = sockets.call(self.places, self.secret, self.found.rank, _TRY)
        if self.connection:
            self.connection.settimeout(_TRY)
            with suppress(OSError):
                self.connection.sendall(encode(messages.Meeting(text), self.attempt))
                return self.connection
        return None
