"""The rank's end of the status channel: it sends the agent its identity, its progress and its failure."""

import atexit
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from unilaunch.folder.failure import describe_exception
from unilaunch.interfaces.step import LAST, Step
from unilaunch.json_value import JsonValue
from unilaunch.monitor.messages import Done, Failed, OfRank, Saving, encode
from unilaunch.rank.status_page import Pace, StatusPage

#: The agent sends this to its rank when the user stops the job.
STOP = b"s"
#: The phase in which a rank waits for the ranks of other hosts to start.
MEETING_HOSTS = "meeting the ranks of other hosts"
#: Signals of the user's stop, which the agent also reports, and those that a scheduler sends before a time limit.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
_NEWEST = 0.1  # weight of the newest interval of work in the moving average
#: Packages whose exit functions save nothing of the user's.
_FRAMEWORKS = frozenset({"torch", "mindspore", "mpi4py", "numpy", "torch_geometric", "loguru", "joblib"})


class Registrations:
    """What a program registers for its end, from `watch` on: a handler of SIGTERM, functions that atexit calls.

    The agent gives a rank that saves the time of --grace also where another rank has failed; all others are ended at
    once.

    Args:
        tell: Called when the program begins to save.

    Attributes:
        has_exit_functions: Whether the program, or a library that is no framework, has registered an exit function.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self._own = tell, os.getpid()
        self.has_exit_functions = False

    def watch(self) -> None:
        """Let `signal.signal` and `atexit.register` tell this object what the program gives them."""
        native_signal, native_get = signal.signal, signal.getsignal
        native_register: Callable[..., Any] = atexit.register

        @functools.wraps(native_signal)
        def set_handler(number: int, handler: Any) -> Any:
            wrapped = _Told(handler, self) if number == signal.SIGTERM and callable(handler) else handler
            return _as_given(native_signal(number, wrapped))

        @functools.wraps(native_get)
        def get_handler(number: int) -> Any:
            return _as_given(native_get(number))

        @functools.wraps(native_register)
        def register(function: Any, *args: Any, **options: Any) -> Any:
            self.has_exit_functions |= _is_of_user(function)
            return native_register(function, *args, **options)

        replaced: Any = signal, atexit
        replaced[0].signal, replaced[0].getsignal, replaced[1].register = set_handler, get_handler, register

    def tell_saving(self) -> None:
        """Tell that the program begins to save; a process that it has forked is no rank."""
        if os.getpid() == self._own:
            self._tell()


class _Told:
    """A handler of the program's, of whose begin the agent is told."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any], registrations: Registrations) -> None:
        self.handler, self._registrations = handler, registrations

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        """Tell of it, and handle the signal."""
        self._registrations.tell_saving()
        return self.handler(number, frame)


def _as_given(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Told) else handler


def _is_of_user(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    top = str(getattr(function, "__module__", "") or "").partition(".")[0]
    return not (top in sys.stdlib_module_names or top in _FRAMEWORKS or top.startswith("unilaunch"))


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
        """Send the agent how this rank fails, what it was doing, and the text for its log."""
        self.failed = True
        self.send(Failed(describe_exception(error, exit_code, self.page.facts, together=together, told=not log), log))

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

    def send(self, message: OfRank) -> None:
        """Send a message to the agent, and through it to the monitor."""
        with suppress(OSError):  # the agent has exited
            self.connection.sendall(encode(message))

    def hand_over(self, descriptor: int, message: OfRank) -> None:
        """Send the agent an open file, and close it here, so that a program's children do not inherit it."""
        with suppress(OSError):
            socket.send_fds(self.connection, [encode(message)], [descriptor])
        os.close(descriptor)
