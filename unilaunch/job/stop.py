"""The user's signals to `launch`: how they reach the ranks, and when a stopped job must end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from unilaunch.folder.failure import signal_name
from unilaunch.job.terminal import Live, own_windows
from unilaunch.monitor import messages
from unilaunch.monitor.inbox import AgentConnection
from unilaunch.monitor.monitor import Monitor
from unilaunch.record import Record, field

#: Seconds in which the agents end their ranks after an order; mpirun needs longer.
PROMPT = 2.0
#: Seconds in which a second signal counts as the same one: timeout(1) signals its child and the child's group.
_ECHO = 0.1
#: Signals that do not stop a job: ranks handle them, SIGTSTP pauses the ranks, and SIGWINCH resizes rank 0's terminal.
_PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGWINCH}


class UserSignals(Record, frozen=False):
    """The signals of the user.

    Attributes:
        number: The signal that stops the job; 0 if there was none.
        at: When this signal, or the last one of the same number, arrived.
        again: Whether a second signal has arrived: the job must end at once.
        others: Signals that have not been passed on to the ranks yet.
    """

    number: int = 0
    at: float = 0.0
    again: bool = False
    others: list[int] = field(default_factory=list)

    def note(self, number: int) -> None:
        """Record a signal."""
        if number in _PASSED_ON:
            self.others.append(number)
        else:
            self.again |= bool(self.number) and time.monotonic() - self.at > _ECHO
            self.number, self.at = self.number or number, time.monotonic()


@contextmanager
def noting_signals(signals: UserSignals, *, to_the_end: bool = False) -> Iterator[list[int]]:
    """Record the user's signals in *signals* while the block runs; only in the main thread.

    Yields the list of signals that stop the job, which grows as they arrive. Afterwards the signals do again what they
    did before; with *to_the_end* they do nothing: the process ends after the block, with the exit code of the job.
    """
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if number not in _PASSED_ON:
            received.append(number)
        signals.note(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_PASSED_ON)
    # Under nohup SIGHUP is ignored; a handler in C, as of a profiler, could not be restored.
    caught = [number for number in numbers if signal.getsignal(number) not in {signal.SIG_IGN, None}]
    try:
        before = {number: signal.signal(number, note) for number in caught}
    except ValueError:  # not the main thread: the caller handles the signals
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if to_the_end else handler)


class UserStop:
    """Passes the user's signals on to the ranks, and decides when a stopped job must end."""

    def __init__(self, monitor: Monitor, signals: UserSignals, grace: float, live: Live) -> None:
        self.monitor, self.signals, self.grace, self.live = monitor, signals, grace, live
        self.informed: set[AgentConnection] = set()
        self.resize: messages.Resize | None = None  # the last size of the caller's terminals, if that has changed
        self.resized: set[AgentConnection] = set()  # the agents that know it
        self.released = self.left = False
        self.until = float("inf")

    def pass_on(self) -> None:
        """Pass on the recorded signals; a rank that has connected since the stop gets them too."""
        inbox, now = self.monitor.inbox, time.monotonic()
        while self.signals.others:
            self._pass_on_other(self.signals.others.pop(0))
        if self.resize and (new := inbox.agents - self.resized):
            self.resized |= new
            inbox.tell(new, self.resize)
        if not self.signals.number or self.monitor.ending:
            return
        if new := inbox.agents - self.informed:
            first, self.informed = not self.informed, self.informed | new
            self.until = now + self.grace if first else self.until
            inbox.tell(new, messages.Stop(self.signals.number, max(0.0, self.until - now)))
            if first:
                name = signal_name(self.signals.number)
                self.live.say(f"{name}: the ranks have {self.grace:g} s to end; a second signal ends them at once")
        if self.informed and self.monitor.all_done and not self.released:
            self.released = True
            inbox.tell_all(messages.Release())
        if (
            self.informed and self.monitor.finished and not self.left
        ):  # not before: mpirun ends all at the first one's exit
            self.left = True
            inbox.tell_all(messages.Leave(128 + self.signals.number))

    def _pass_on_other(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._pause()
        elif number == signal.SIGWINCH:
            self.resize, self.resized = messages.Resize(tuple(tuple(window or ()) for window in own_windows())), set()
        else:
            self.monitor.inbox.tell_all(messages.PassSignal(number))

    def _pause(self) -> None:
        """Pause the ranks, then this process, at Ctrl-Z; continue the ranks when the shell continues this process."""
        inbox = self.monitor.inbox
        inbox.tell_all(messages.PassSignal(signal.SIGSTOP))
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # sent to this thread, which stops here
        inbox.tell_all(messages.PassSignal(signal.SIGCONT))
        inbox.moved = time.monotonic()  # the pause does not count as a stall

    @property
    def is_over(self) -> bool:
        """Whether the job must be ended by force: a second signal came, no rank can be stopped, or time is up."""
        if not self.signals.number:
            return False
        late = time.monotonic() > self.until + PROMPT
        return self.signals.again or self.monitor.ending or not self.informed or late

    def order_end(self) -> None:
        """Order every agent to end its ranks now, unless a failure has already caused that order."""
        if not self.monitor.ending:
            self.monitor.inbox.end(messages.End(128 + self.signals.number))
