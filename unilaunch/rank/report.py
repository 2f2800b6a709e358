"""A rank's line to its guard: who it is, what it is doing, and how it failed."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from unilaunch.rank.page import Page

#: What the guard says to its rank when the user stops the job.
STOP = b"s"


class Report:
    """What a rank tells.

    Args:
        connection: The way to the guard.
        page: What the guard can still read when the rank has been killed.
    """

    def __init__(self, connection: socket.socket, page: Page) -> None:
        self.connection = connection
        self.page = page
        self.failed = False
        self.released = False

    def note(self, **facts: Any) -> None:
        """Note what this rank is doing; costs microseconds."""
        self.page.note(**facts)

    def fail(self, known: Mapping[str, Any]) -> None:
        """Tell how this rank fails, and at what."""
        self.failed = True
        self.send(failure={**known, "doing": self.page.facts})

    @property
    def stopped(self) -> bool:
        """The user stops the job: another rank may have gone, and is not to be waited for in a collective."""
        with suppress(OSError):
            return self.connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == STOP
        return False

    def wait_for_release(self) -> None:
        """Tell that the program has ended; the job is stopped: wait until every rank has come as far or has ended."""
        self.released = True
        self.send(done=True, leaving=True)  # at once: a release may follow the first word
        with suppress(OSError):
            while self.connection.recv(1):
                pass

    def send(self, **record: Any) -> None:
        """Tell *record*, which must be JSON."""
        with suppress(OSError):  # without a guard there is nobody to tell
            self.connection.sendall(json.dumps(record).encode() + b"\n")

    def hand_over(self, descriptor: int, **record: Any) -> None:
        """Tell *record*, and give the guard a descriptor; it is closed here, so a program's children do not get it."""
        with suppress(OSError):
            socket.send_fds(self.connection, [json.dumps(record).encode() + b"\n"], [descriptor])
        os.close(descriptor)
