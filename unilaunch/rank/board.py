"""Where the ranks of one start meet before they can speak: rank 0 posts its address and a secret, the others read them.

A board is what the launcher offers for that: its own key-value store (`pmix`, `pmi`), or where none can be used a
file that only this user can read (`secret_file`). From there on `tcp` connects the ranks.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Self

from typing_extensions import override

from unilaunch import addresses
from unilaunch.errors import RendezvousError
from unilaunch.handshake import new_secret
from unilaunch.world import LauncherInfo

#: Below the ports that Linux gives to whoever asks for any.
_PORTS = range(20000, 32768)
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where rank 0 listens, and what a rank must know there.

    Attributes:
        places: Addresses and ports, likeliest first.
        secret: The secret of this start.
    """

    places: Sequence[tuple[str, int]]
    secret: bytes

    @property
    def text(self) -> str:
        """One word, as a launcher's store takes it: "10.0.0.1;PORT,fd00::1;PORT/SECRET"."""
        return ",".join(f"{address};{port}" for address, port in self.places) + f"/{self.secret.hex()}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what `text` says.

        Raises:
            ValueError: It is no such text.
        """
        places, _, secret = text.partition("/")
        pairs = [place.split(";") for place in places.split(",")]
        return cls([(address, int(port)) for address, port in pairs], bytes.fromhex(secret))


class Board(ABC):
    """One start's meeting place, as one rank sees it."""

    @abstractmethod
    def post(self) -> tuple[socket.socket, bytes]:
        """Listen, and tell the other ranks where; for rank 0. Return the listening socket and the secret.

        Raises:
            RendezvousError: It cannot be told.
        """

    @abstractmethod
    def read(self) -> Meeting | None:
        """Return what rank 0 has posted, for the other ranks; None if nothing is there yet. Asked again and again."""

    @abstractmethod
    def close(self) -> None:
        """Take down what was posted; every rank calls it once the ranks are connected, or will never be."""

    def finish(self) -> None:  # noqa: B027  (most have nothing to do)
        """Take leave of the launcher, at the end of the process."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """What a person can look at when a rank did not find rank 0 here."""


def open_meeting(found: LauncherInfo) -> tuple[socket.socket, Meeting]:
    """Listen at a free port, with a new secret, at every address by which the job's hosts may reach this one."""
    several = not found.one_host
    listener = addresses.listen(0, several=several)
    port = int(listener.getsockname()[1])
    own = addresses.own_addresses(found.rank_0_hosts, several=several)
    return listener, Meeting([(address, port) for address in own], new_secret())


class PublicBoard(Board):
    """No board at all: the ports follow from the run's name, and the secret from that name and a key.

    Rank 0 binds the first of a few ports that is free. Without a key others can guess the secret: used only where the
    user asks for it.

    Args:
        found: What the launcher says.
        key: What all ranks of the job were given, and nobody else; "" for none.
    """

    def __init__(self, found: LauncherInfo, key: str = "") -> None:
        self.several = not found.one_host
        self.hosts = found.rank_0_hosts if self.several else (addresses.loopback(),)
        self.name = sha256(f"unilaunch {found.run_id}".encode()).digest()
        self.secret = sha256(self.name + key.encode()).digest()

    @property
    def ports(self) -> list[int]:
        """The ports at which rank 0 may listen, first the likeliest."""
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

    @override
    def close(self) -> None:
        """Nothing was posted."""

    @property
    @override
    def advice(self) -> str:
        return f"at {' or '.join(self.hosts)}, ports {self.ports}: was rank 0 started, and is that its host?"
