"""A board for ranks that `unilaunch launch` has started: the launching process, to which the agents connect too."""

import socket
import time
from contextlib import suppress

from unilaunch.connections import sockets
from unilaunch.errors import RendezvousError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.monitor import messages
from unilaunch.monitor.connection import read_where
from unilaunch.monitor.messages import BadMessageError, decode, encode
from unilaunch.overriding import override
from unilaunch.rendezvous.board import Board, Meeting, open_meeting

_TRY = 5.0  # seconds for one try to reach the launching process
_PATIENCE, _PAUSE = 30.0, 0.2  # seconds for all tries of rank 0, and between two tries
_LARGEST = 4096  # bytes of its answer


class LaunchBoard(Board):
    """A rank's connection to the launching process.

    Args:
        found: The launcher info.
        where: Where the launching process listens, as in `start_variables.MONITOR`.
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
