"""What a rank tells its agent: its identity, its progress and its failure, over the status channel and the status page.

The status page is memory that a rank shares with its agent, which can still read it after the rank was killed.
"""

import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

from unilaunch.folder.failure import describe_exception
from unilaunch.interfaces import calls
from unilaunch.interfaces.step import LAST, Step
from unilaunch.json_value import JsonValue
from unilaunch.monitor.messages import Done, Failed, OfRank, Saving, encode
from unilaunch.rank.interpreter import Registrations

#: The agent sends this to its rank when the user stops the job.
STOP = b"s"
#: The phase in which a rank waits for the ranks of other hosts to start.
MEETING_HOSTS = "meeting the ranks of other hosts"
#: Signals of the user's stop, which the agent also reports, and those that a scheduler sends before a time limit.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
_LONGEST_LOG = 1 << 20  # characters of a text that a message takes
_SLOT = 1 << 16  # bytes of one status; memory that is never written costs nothing
_COUNT = struct.Struct("=QII")
_PACE = struct.Struct("=QdQ")
_WAITING = _COUNT.size + _PACE.size  # offset of one byte
_CALLS = 64  # offset of the newest collectives, after the count, the pace, and whether the rank waits
_SLOTS = _CALLS + calls.SIZE  # offset of the first status
_NEWEST = 0.1  # weight of the newest interval of work in the moving average


class Pace(NamedTuple):
    """A rank's counters since its start; they only grow.

    Attributes:
        steps: Steps of a model, or waits of a script for other ranks.
        busy: Seconds of these steps in which the rank did not wait for other ranks.
        received: Bytes received from other ranks, if the model counts them.
    """

    steps: int = 0
    busy: float = 0.0
    received: int = 0


class StatusPage:
    """Double-buffered status: if the rank is killed while it writes, the previous status is intact."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SLOTS + 2 * _SLOT)
        self.count = 0
        self.sizes = [0, 0]
        self.facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Add *facts*, which must be JSON, to the status; a new phase starts without the facts of the previous one.

        Facts that are too long are left out, longest first.
        """
        known = facts if "phase" in facts else self.facts | facts
        while len(text := json.dumps(known, allow_nan=False).encode()) > _SLOT:
            longest = max(known, key=lambda name: len(json.dumps(known[name])))
            known = {name: value for name, value in known.items() if name != longest}
        self.facts = known
        self.count += 1
        slot = self.count % 2
        begin = _SLOTS + slot * _SLOT
        self.memory[begin : begin + len(text)] = text
        self.sizes[slot] = len(text)
        _COUNT.pack_into(self.memory, 0, self.count, *self.sizes)

    def read(self) -> tuple[int, dict[str, Any]]:
        """Return how often the status was written, and the newest one."""
        count, *sizes = _COUNT.unpack_from(self.memory)
        begin = _SLOTS + count % 2 * _SLOT
        try:
            return count, json.loads(self.memory[begin : begin + sizes[count % 2]])
        except ValueError:  # there is no status yet, or a newer one was written meanwhile
            return count, {}

    def note_pace(self, pace: Pace) -> None:
        """Write the pace; this takes less than a microsecond."""
        _PACE.pack_into(self.memory, _COUNT.size, *pace)

    def note_waiting(self, *, waiting: bool) -> None:
        """Write whether the rank waits for other ranks; this takes a tenth of a microsecond."""
        self.memory[_WAITING] = waiting

    @property
    def calls(self) -> memoryview:
        """Where the rank's newest collectives are, as `CallLog` writes them."""
        return memoryview(self.memory)[_CALLS:_SLOTS]

    @property
    def is_waiting(self) -> bool:
        """Whether the rank waits for other ranks in a collective."""
        return bool(self.memory[_WAITING])

    def read_pace(self) -> Pace:
        """Return the newest pace."""
        return Pace(*_PACE.unpack_from(self.memory, _COUNT.size))


class Status:
    """Sends the agent what the rank is and does.

    Args:
        connection: The status channel.
        page: The status page, which the agent can still read when the rank has been killed.
    """

    def __init__(self, connection: socket.socket, page: StatusPage) -> None:
        self.connection = connection
        self.page = page
        self.failed = False
        self.runs_program = True  # False for a model, which leaves nothing of a user's in the interpreter
        self.left_alone = False  # other ranks may have ended before this one: nothing must wait for them
        self.registrations = Registrations(lambda: self.send(Saving()))
        self.terminated = False  # SIGTERM ended the wait for the other ranks
        self.last_step: dict[str, JsonValue] = {}
        self.pace = Pace()
        self._waited = 0.0  # when the previous wait ended; 0 if that is unknown
        self._usual = 0.0  # moving average of the seconds of work between two waits

    def note(self, *, phase: str) -> None:
        """Write what this rank is doing to the status page, with the last step; this takes microseconds."""
        self.page.note(phase=phase, **({LAST: self.last_step} if self.last_step else {}))

    def note_step(self, step: Step) -> None:
        """Write the step that this rank is in to the status page; this takes microseconds."""
        self.last_step = step.as_facts()
        self.page.note(**self.last_step)
        steps, busy, received = self.pace
        self.pace = Pace(steps + 1, busy + (step.busy or 0.0), received + int(step.received))
        self.page.note_pace(self.pace)

    def begin_wait(self) -> None:
        """Record that a program waits for other ranks from now on."""
        self.page.note_waiting(waiting=True)

    def drop_wait(self) -> None:
        """Record that a wait has failed."""
        self.page.note_waiting(waiting=False)

    def end_wait(self, seconds: float | None) -> None:
        """Record that a program has waited for other ranks until now; the time between two waits counts as work.

        Args:
            seconds: How long it has waited. None if that was not measured: then the average work is used.
        """
        now, own = time.perf_counter(), self._usual
        if seconds is not None and self._waited:
            own = max(0.0, now - self._waited - seconds)
            self._usual += (own - self._usual) * (_NEWEST if self._usual else 1.0)
        self._waited = 0.0 if seconds is None else now
        steps, busy, received = self.pace
        self.pace = Pace(steps + 1, busy + own, received)
        self.page.note_pace(self.pace)
        self.page.note_waiting(waiting=False)

    def fail(self, error: BaseException, exit_code: int, *, together: bool = False, log: str = "") -> None:
        """Send the agent how this rank fails, what it was doing, and the text for its log.

        A text that is too long for a message goes to standard error, and so does each one if the program has closed the
        channel, as with every other descriptor.
        """
        self.failed = True
        if len(log) > _LONGEST_LOG:
            _write_error(log)
            log = ""
        failure = describe_exception(error, exit_code, self.page.facts, together=together, shown=not log)
        if not self.send(Failed(failure, log)):
            _write_error(log)

    @property
    def stopped(self) -> bool:
        """Whether the user stops the job: then other ranks may have ended, and this rank must not wait for them."""
        with suppress(OSError):
            return self.connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == STOP
        return False

    def note_stops(self, *, patient: bool) -> Callable[[], bool]:
        """Record signals that stop the job from now on; return a function that returns whether one has arrived.

        A signal without a stop of the monitor ends the rank at once: for instance mpirun's, which is followed by
        SIGKILL. The exception is SIGTERM of a patient launcher.

        Args:
            patient: Whether the launcher waits about half a minute for its ranks after a SIGTERM.
        """
        asked = False

        def note(number: int, _: FrameType | None) -> None:
            nonlocal asked
            if number in _STOPS and not (self.stopped or (patient and number == signal.SIGTERM)):
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            asked = True

        for number in (*_STOPS, *_NOTICES):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, note)
        return lambda: asked

    def wait_for_release(self) -> None:
        """In a stopped job: send that the program has ended, and wait until the programs of all ranks have ended."""
        self.left_alone = True
        self.send(Done(leaving=True))  # in one message: the release may follow the first one
        with suppress(OSError):
            while self.connection.recv(1):
                pass

    def send(self, message: OfRank) -> bool:
        """Send a message to the agent, and through it to the monitor; return whether it was sent."""
        try:
            self.connection.sendall(encode(message))
        except OSError:  # the agent has exited, or the program has closed every descriptor
            return False
        return True

    def hand_over(self, descriptor: int, message: OfRank) -> None:
        """Send the agent an open file, and close it here, so that a program's children do not inherit it."""
        with suppress(OSError):
            socket.send_fds(self.connection, [encode(message)], [descriptor])
        os.close(descriptor)


def _write_error(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # the program may have closed this, too
        sys.stderr.write(text)
        sys.stderr.flush()
