"""A rank's input, piece by piece from `launch`: a launcher may lose a part of it, or its end."""

import os
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_WRITE

from unilaunch.agent.loop import Loop


class Input:
    """Passes on what `launch` reads.

    Args:
        descriptor: The pipe to the rank.
        loop: The agent's loop.
        request: Requests the next piece.
    """

    def __init__(self, descriptor: int, loop: Loop, request: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)  # the rank's own end stays as it is
        self._descriptor, self._loop, self._request = descriptor, loop, request
        self._rest = b""

    def begin(self, rank: int) -> None:
        """Request the first piece; the input of every rank but 0 ends here."""
        if rank:
            self.close()
        else:
            self._request()

    def take(self, piece: bytes) -> None:
        """Pass on a piece, and then request the next one; an empty piece is the end of the input."""
        if not piece:
            self.close()
        elif self._descriptor >= 0:
            self._rest = piece
            self._loop.watch(self._descriptor, self._write, EVENT_WRITE)

    def _write(self) -> bool:
        """Write as much as the pipe can take; return whether something is left."""
        try:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except BlockingIOError:  # it can take less than a page
            return True
        except OSError:  # the rank has closed its input
            self.close()
            return True  # it is not watched any more
        if not self._rest:
            self._request()
        return bool(self._rest)

    def close(self) -> None:
        """End the input, also before its end."""
        if self._descriptor >= 0:
            self._loop.forget([self._descriptor])
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
