"""The board of a start, where ranks find each other: rank 0 posts its address and a secret, the others read them.

A board is the launcher's key-value store (`pmix`, `pmi`) or, where no store can be used, a file that only this user can
read (`secret_file`). With what they read there, `tcp` connects the ranks.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from typing import Self

from unilaunch.connections.handshake import new_secret
from unilaunch.errors import RendezvousError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.machine import addresses
from unilaunch.overriding import override
from unilaunch.record import Record

#: Below the range from which Linux assigns free ports.
_PORTS = range(20000, 32768)
_TRIES = 16


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
