"""Report a rank's progress: its agent sends changes to the monitor, with the time since it noticed them."""

from collections.abc import Callable
from contextlib import suppress

from unilaunch.agent.output import Output
from unilaunch.agent.usage import read_usage
from unilaunch.json_value import JsonValue
from unilaunch.monitor.messages import Progress
from unilaunch.rank.status_page import StatusPage

_TELL = 0.5  # least seconds between two messages on progress
_TELL_PACE = 1.0  # the same, if only the pace has changed
_TELL_MEMORY = 10.0  # the same, if neither has changed: the memory is sent
_LOOK = 0.1  # seconds between two readings of the status page


class ProgressTeller:
    """Reads a rank's status page, and how much it has written.

    Args:
        pid: The rank's process number.
        page: The status page.
        output: The rank's output: a rank that writes makes progress.
        tell: Called with each message to send.
    """

    def __init__(self, pid: int, page: StatusPage, output: Output, tell: Callable[[Progress], None]) -> None:
        self.pid, self.page, self.output, self.tell = pid, page, output, tell
        self.looked_at = self.seen_at = self.told_at = 0.0
        self.seen: object = None  # the newest state
        self.told: object = None  # the newest progress that was sent
        self.told_pace: object = None

    @property
    def doing(self) -> dict[str, JsonValue]:
        """The rank's newest status."""
        return self.page.read()[1]

    def tick(self, now: float, *, last: bool = False) -> None:
        """Send what has changed, if it is time or the *last* time; *now* is in seconds of `time.monotonic`."""
        if now - self.looked_at < _LOOK and not last:
            return
        self.looked_at = now
        current, pace = (self.page.read()[0], self.output.arrived), self.page.read_pace()
        if (current, pace.steps) != self.seen:
            self.seen_at, self.seen = now, (current, pace.steps)
        pause = _TELL if current != self.told else _TELL_PACE if pace != self.told_pace else _TELL_MEMORY
        is_new = (current, pace) != (self.told, self.told_pace)
        if now - self.told_at >= pause or (last and is_new):
            self.told_at, self.told, self.told_pace = now, current, pace
            memory = 0
            with suppress(OSError, IndexError):  # the process has ended
                _, memory = read_usage(self.pid)
            self.tell(Progress(self.doing, round(now - self.seen_at, 3), *pace, memory))
