"""Who asks an agent for ranks. Requests are read beside everything else: an asker that stops delays nobody."""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from unilaunch.agent.shim import Shim, is_same_user

#: Seconds for an asker's request, and for its acknowledgement that it takes a rank: it sends each at once.
_PATIENCE = 10.0
_AT_ONCE = 256  # connections that are accepted before anything else is done


class Requests:
    """The shims that ask for a rank, each in one of the stages below. Other users are sent away at once.

    Args:
        door: The listening socket.
        own: The circumstances in which a process must be to be forked from this one.

    Attributes:
        waiting: Those whose request has been read, and is to be granted.
        taken: Those that have acknowledged the offer: their ranks are to be forked now.
        asked: How many requests have been read.
    """

    def __init__(self, door: socket.socket, own: Mapping[str, Any]) -> None:
        self.door, self.own = door, own
        self.waiting: list[Shim] = []
        self.taken: list[Shim] = []
        self.asked = 0
        self.selector = DefaultSelector()
        self._unheard: dict[Shim, float] = {}  # whose next word is awaited, until when
        door.setblocking(False)
        self.selector.register(door, EVENT_READ)

    @property
    def is_empty(self) -> bool:
        """Nobody asks."""
        return not (self.waiting or self.taken or self._unheard)

    def take(self, patience: float) -> None:
        """Take what comes in, for at most *patience* seconds or until something has."""
        for key, _ in self.selector.select(patience):
            if key.data is None:
                self._accept()
            else:
                self._hear(key.data)
        now = time.monotonic()
        for shim in [shim for shim, until in self._unheard.items() if now > until]:
            self._stop_hearing(shim)
            shim.close()

    def offer(self, shim: Shim) -> None:
        """Offer a rank to a shim that waits."""
        self.waiting.remove(shim)
        try:
            shim.offer()
        except OSError:  # it has given up
            shim.close()
        else:
            self._await(shim)

    def send_away(self, shim: Shim) -> None:
        """Let a shim that waits go on by itself."""
        self.waiting.remove(shim)
        shim.close()

    def close(self) -> None:
        """Close every socket; also in a process that has been forked: what is registered stays so in the other one."""
        for shim in (*self.waiting, *self.taken, *self._unheard):
            shim.close()
        self.selector.close()
        self.door.close()

    def _accept(self) -> None:
        with suppress(OSError):  # nobody is left
            for _ in range(_AT_ONCE):
                connection, _ = self.door.accept()
                if is_same_user(connection):
                    self._await(Shim(connection))
                else:
                    connection.close()

    def _await(self, shim: Shim) -> None:
        self._unheard[shim] = time.monotonic() + _PATIENCE
        self.selector.register(shim.connection, EVENT_READ, shim)

    def _stop_hearing(self, shim: Shim) -> None:
        del self._unheard[shim]
        self.selector.unregister(shim.connection)

    def _hear(self, shim: Shim) -> None:
        """Take a piece of what a shim sends; with all of its request, or its acknowledgement, it is a stage further."""
        try:
            is_whole = shim.hear_acknowledgement() if shim.offered else shim.hear_request()
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, RecursionError):  # it has gone, or this is no request
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
