"""Let a model that stops patiently find out that a stop was requested."""

import os
import signal
from collections.abc import Callable
from types import FrameType

from unilaunch.rank.status import Status

#: Signals of the user's stop, which the agent also reports, and those that a scheduler sends before a time limit.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)


def note_stops(status: Status, *, patient: bool) -> Callable[[], bool]:
    """Record signals that stop the job from now on; return a function that returns whether one has arrived.

    A signal without a stop of the monitor ends the rank at once: for instance mpirun's, which is followed by SIGKILL.
    The exception is SIGTERM of a patient launcher.

    Args:
        status: The status channel to the agent.
        patient: Whether the launcher waits about half a minute for its ranks after a SIGTERM.
    """
    asked = False

    def note(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if number in _STOPS and not (status.stopped or (patient and number == signal.SIGTERM)):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked = True

    for number in (*_STOPS, *_NOTICES):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, note)
    return lambda: asked
