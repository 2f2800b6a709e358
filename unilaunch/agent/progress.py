"""What a rank is doing: its agent tells it to the monitor when it changes, and how long ago that was noticed."""

from collections.abc import Callable

from unilaunch.agent.output import Output
from unilaunch.json_value import JsonValue
from unilaunch.monitor.messages import Progress
from unilaunch.rank.status_page import StatusPage

_TELL = 0.5  # seconds between two words on progress
_LOOK = 0.1  # seconds between two looks at it


class ProgressTeller:
    """Looks at a rank's status page, and at how much the rank has written.

    Args:
        page: The status page.
        output: The rank's output: a rank that writes makes progress.
        tell: Told what there is to tell.
    """

    def __init__(self, page: StatusPage, output: Output, tell: Callable[[Progress], None]) -> None:
        self.page, self.output, self.tell = page, output, tell
        self.looked_at = self.seen_at = self.told_at = 0.0
        self.seen: object = None  # the newest state
        self.told: object = None  # the newest one that was told

    @property
    def doing(self) -> dict[str, JsonValue]:
        """What the rank has noted last."""
        return self.page.read()[1]

    def tick(self, now: float) -> None:
        """Tell what has changed, if it is time; *now* is of `time.monotonic`."""
        if now - self.looked_at < _LOOK:
            return
        self.looked_at = now
        current = (self.page.read()[0], *self.output.sizes())
        if current != self.seen:
            self.seen_at, self.seen = now, current
        if self.seen != self.told and now - self.told_at >= _TELL:
            self.told_at, self.told = now, current
            self.tell(Progress(self.doing, round(now - self.seen_at, 3)))
