"""Requests of shims for ranks. The agent reads without blocking: a shim that stops sending does not delay others."""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from unilaunch.agent.shim import Shim, is_same_user

#: Seconds that the agent waits for a shim's request and for its acknowledgement; a shim sends each in one piece.
_PATIENCE = 10.0
_AT_ONCE = 256  # most connections that are accepted in one turn


class Requests:
    """The shims that request a rank, by stage. Connections of other users are closed at once.

    Args:
        door: The listening socket.
        own: The agent's fingerprint; only requests with an equal one are granted.

    Attributes:
        waiting: The shims whose request has been read and not yet been answered.
        taken: The shims that have acknowledged the offer: the agent forks their ranks next.
        asked: Number of requests that have been read.
    """

    def __init__(self, door: socket.socket, own: Mapping[str, Any]) -> None:
        self.door, self.own = door, own
        self.waiting: list[Shim] = []
        self.taken: list[Shim] = []
        self.asked = 0
        self.selector = DefaultSelector()
        self._unheard: dict[Shim, float] = {}  # shims that must still send, each with its deadline
        door.setblocking(False)
        self.selector.register(door, EVENT_READ, self._accept)

    @property
    def is_empty(self) -> bool:
        """Whether there is no request."""
        return not (self.waiting or self.taken or self._unheard)

    def take(self, patience: float) -> None:
        """Read requests and acknowledgements; wait at most *patience* seconds for the first."""
        for key, _ in self.selector.select(patience):
            key.data()
        now = time.monotonic()
        for shim in [shim for shim, until in self._unheard.items() if now > until]:
            self._stop_hearing(shim)
            shim.close()

    def offer(self, shim: Shim) -> None:
        """Offer a rank to a waiting shim."""
        self.waiting.remove(shim)
        try:
            shim.offer()
        except OSError:  # the shim has closed the connection
            shim.close()
        else:
            self._await(shim)

    def send_away(self, shim: Shim) -> None:
        """Close the connection to a waiting shim, which then supervises its rank itself."""
        self.waiting.remove(shim)
        shim.close()

    def close(self) -> None:
        """Close every socket. A forked process may call this: its parent's registrations stay."""
        for shim in (*self.waiting, *self.taken, *self._unheard):
            shim.close()
        self.selector.close()
        self.door.close()

    def _accept(self) -> None:
        with suppress(OSError):  # no connection is left
            for _ in range(_AT_ONCE):
                connection, _ = self.door.accept()
                if is_same_user(connection):
                    self._await(Shim(connection))
                else:
                    connection.close()

    def _await(self, shim: Shim) -> None:
        self._unheard[shim] = time.monotonic() + _PATIENCE
        self.selector.register(shim.connection, EVENT_READ, partial(self._hear, shim))

    def _stop_hearing(self, shim: Shim) -> None:
        del self._unheard[shim]
        self.selector.unregister(shim.connection)

    def _hear(self, shim: Shim) -> None:
        """Read from a shim; when its request or its acknowledgement is complete, move it to the next stage."""
        try:
            is_whole = shim.hear_acknowledgement() if shim.offered else shim.hear_request()
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, RecursionError):  # the shim has exited, or this is not a request
            self._stop_hearing(shim)
            shim.close()
            return
        if not is_whole:
            return
        self._stop_hearing(shim)
        if shim.offered:
            self.taken.append(shim)
            return
        self.asked += 1
        if shim.request.get("circumstances") == self.own and len(shim.files) == len(shim.request["files"]):
            self.waiting.append(shim)
        else:
            shim.close()
