"""The rank's end of its status channel: it tells the agent who it is, what it is doing, and how it failed."""

import os
import socket
from contextlib import suppress
from typing import Any

from unilaunch.monitor.messages import Done, Failed, OfRank, encode
from unilaunch.output.failure import describe_exception
from unilaunch.rank.status_page import StatusPage
from unilaunch.step import Step

#: What the agent says to its rank when the user stops the job.
STOP = b"s"


class Status:
    """What a rank tells its agent.

    Args:
        connection: The status channel.
        page: The status page, which the agent can still read when the rank has been killed.
    """

    def __init__(self, connection: socket.socket, page: StatusPage) -> None:
        self.connection = connection
        self.page = page
        self.failed = False
        self.released = False

    def note(self, **facts: Any) -> None:
        """Note what this rank is doing; costs microseconds."""
        self.page.note(**facts)

    def note_step(self, step: Step) -> None:
        """Note the step that this rank is in; costs microseconds."""
        self.page.note(**step.as_facts())

    def fail(self, error: BaseException, exit_code: int, *, together: bool = False) -> None:
        """Tell how this rank fails, and at what."""
        self.failed = True
        self.send(Failed(describe_exception(error, exit_code, self.page.facts, together=together)))

    @property
    def stopped(self) -> bool:
        """The user stops the job: another rank may have gone, and is not to be waited for in a collective."""
        with suppress(OSError):
            return self.connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == STOP
        return False

    def wait_for_release(self) -> None:
        """Tell that the program has ended; the job is stopped: wait until every rank has come as far or has ended."""
        self.released = True
        self.send(Done(leaving=True))  # at once: a release may follow the first word
        with suppress(OSError):
            while self.connection.recv(1):
                pass

    def send(self, message: OfRank) -> None:
        """Tell the agent, or through it the monitor."""
        with suppress(OSError):  # without an agent there is nobody to tell
            self.connection.sendall(encode(message))

    def hand_over(self, descriptor: int, message: OfRank) -> None:
        """Give the agent a descriptor; it is closed here, so a program's children do not get it."""
        with suppress(OSError):
            socket.send_fds(self.connection, [encode(message)], [descriptor])
        os.close(descriptor)
