"""The user's signals to `launch`: how they reach the ranks, and when a job that is stopped must end."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from unilaunch.job.live import Live
from unilaunch.monitor import messages
from unilaunch.monitor.monitor import Monitor
from unilaunch.output.failure import signal_name

#: Seconds in which the agents end their ranks when they are told to; mpirun takes longer.
PROMPT = 2.0
#: Seconds in which a signal that was meant once may come twice: timeout(1) signals its child, and its group.
_ECHO = 0.1
#: Signals that stop no job: the ranks take them for what they like, and SIGTSTP pauses them.
_PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP}


@dataclass(slots=True)
class Asked:
    """What the user has asked for by signals.

    Attributes:
        number: The signal that stops the job; 0 if none has come.
        at: When it, or the last one like it, came.
        again: A second one has come: the job is to end at once.
        others: Signals that the ranks are to get, and have not had yet.
    """

    number: int = 0
    at: float = 0.0
    again: bool = False
    others: list[int] = field(default_factory=list)

    def note(self, number: int) -> None:
        """Note a signal."""
        if number in _PASSED_ON:
            self.others.append(number)
        else:
            self.again |= bool(self.number) and time.monotonic() - self.at > _ECHO
            self.number, self.at = self.number or number, time.monotonic()


@contextmanager
def noting_signals(asked: Asked) -> Iterator[list[int]]:
    """Note in *asked* what the user asks for while the block runs; in the main thread only.

    Gives the signals that stop the job, as they come.
    """
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if number not in _PASSED_ON:
            received.append(number)
        asked.note(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_PASSED_ON)
    caught = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]  # under nohup: SIGHUP
    try:
        before = {number: signal.signal(number, note) for number in caught}
    except ValueError:  # not the main thread: whoever runs it there handles its signals
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stop:
    """How the user's signals reach the ranks, and when a job that is stopped must end."""

    def __init__(self, monitor: Monitor, asked: Asked, grace: float, live: Live) -> None:
        self.monitor, self.asked, self.grace, self.live = monitor, asked, grace, live
        self.told: set[socket.socket] = set()
        self.released = self.left = False
        self.until = float("inf")

    def pass_on(self) -> None:
        """Pass on what has come in; a rank that has connected since the stop gets it too."""
        inbox, now = self.monitor.inbox, time.monotonic()
        while self.asked.others:
            number = self.asked.others.pop(0)
            if number == signal.SIGTSTP:
                self._pause()
            else:
                inbox.tell_all(messages.PassSignal(number))
        if not self.asked.number or self.monitor.ending:
            return
        if new := inbox.agents - self.told:
            first, self.told = not self.told, self.told | new
            self.until = now + self.grace if first else self.until
            inbox.tell(new, messages.Stop(self.asked.number, max(0.0, self.until - now)))
            if first:
                name = signal_name(self.asked.number)
                self.live.say(f"{name}: the ranks have {self.grace:g} s to end; a second signal ends them at once")
        if self.told and self.monitor.all_done and not self.released:
            self.released = True
            inbox.tell_all(messages.Release())
        if self.told and self.monitor.finished and not self.left:  # not before: mpirun ends all at the first one's end
            self.left = True
            inbox.tell_all(messages.Leave(128 + self.asked.number))

    def _pause(self) -> None:
        """Stop the ranks, then this process, as Ctrl-Z asks; when the shell continues this process, so do the ranks."""
        inbox = self.monitor.inbox
        inbox.tell_all(messages.PassSignal(signal.SIGSTOP))
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # of this thread: it goes no further
        inbox.tell_all(messages.PassSignal(signal.SIGCONT))
        inbox.moved = time.monotonic()  # the pause is no stall

    @property
    def is_over(self) -> bool:
        """The time has come to end the job by force: a second signal, no rank to stop, or no time left."""
        if not self.asked.number:
            return False
        late = time.monotonic() > self.until + PROMPT
        return self.asked.again or self.monitor.ending or not self.told or late

    def order_end(self) -> None:
        """Have every agent end its ranks now, unless a failure has done that already."""
        if not self.monitor.ending:
            self.monitor.inbox.end(messages.End(128 + self.asked.number))
