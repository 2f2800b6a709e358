"""How a model that stops patiently hears of a stop."""

import os
import signal
from collections.abc import Callable
from types import FrameType

from unilaunch.rank.status import Status

#: The user's stop, of which the agent tells besides; and what a scheduler sends before a job's time ends.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)


def note_stops(status: Status, *, patient: bool) -> Callable[[], bool]:
    """Let signals that stop the job be noted from now on; return what tells whether one has come.

    A signal that is not the monitor's stop (mpirun's own, say, which is followed by SIGKILL) ends the rank at once, but
    for SIGTERM of a patient launcher.

    Args:
        status: The way to the agent.
        patient: After a SIGTERM the launcher waits half a minute or so for its ranks.
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
