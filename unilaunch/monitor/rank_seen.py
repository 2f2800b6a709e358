"""The monitor's knowledge of one rank, from the messages of the rank and its agent."""

import time
from enum import Enum

from unilaunch.folder.failure import Cause, Failure
from unilaunch.json_value import JsonValue
from unilaunch.monitor import messages
from unilaunch.monitor.messages import OfAgent, OfRank
from unilaunch.record import Record, field

_NOTHING = messages.Progress({}, 0.0)


class RankState(Enum):
    """The state of a rank, as far as the monitor knows."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    EXITED = "exited"
    LOST = "lost"


class RankSeen(Record, frozen=False):
    """What a rank and its agent have sent; a later message replaces an earlier one.

    Attributes:
        state: Its state.
        host: The host that it runs on; "?" before it is known, like the device.
        run: The run that it belongs to, once it has an output folder.
        progress: What it is doing.
        pace: The newest message on its steps, busy seconds, received bytes and memory.
        step_seconds: Seconds of a recent step; 0 before that is known.
        moved: When it last made progress, in seconds of `time.monotonic`.
        failure: How it failed.
        lost: Why the connection to its agent broke.
        exit_code: Its exit code; None if it was ordered to end.
        overdue: Whether it did not end in the time of --grace.
        value: What its function returned.
        result: What its model returned.
        stack: Its stacks, if they were requested.
        saving: Whether its program uses the time that it has to end.
    """

    state: RankState = RankState.STARTING
    host: str = "?"
    device: str = "?"
    run: str = ""
    progress: dict[str, JsonValue] = field(default_factory=dict)
    pace: messages.Progress = _NOTHING
    step_seconds: float = 0.0
    moved: float = 0.0
    failure: Failure | None = None
    lost: Cause | None = None
    exit_code: int | None = None
    overdue: bool = False
    value: JsonValue = None
    result: dict[str, JsonValue] | None = None
    stack: messages.Stack | None = None
    saving: bool = False
    _stepped: float = 0.0

    def hear(self, message: OfRank | OfAgent) -> None:
        """Store a message's content."""
        age = 0.0
        match message:
            case messages.Stack():
                self.stack = message
                return  # this is not progress
            case messages.Progress(facts, age):
                self.progress = facts
                self._note_pace(message)
            case messages.Exited(exit_code, overdue):
                self.exit_code, self.overdue, self.state = exit_code, overdue, RankState.EXITED
            case messages.Returned(value, result):
                self.value, self.result = value, result
            case _:
                self._come_further(message)
        self.moved = max(self.moved, time.monotonic() - age)

    def _note_pace(self, pace: messages.Progress) -> None:
        now = time.monotonic()
        if pace.steps > self.pace.steps:
            if self.pace.steps:
                self.step_seconds = (now - self._stepped) / (pace.steps - self.pace.steps)
            self._stepped = now
        self.pace = pace

    def _come_further(self, message: OfRank | OfAgent) -> None:
        match message:
            case messages.Named(_, host, _):
                self.host = host
            case messages.Placed(host, device, run):
                self.host, self.device, self.run, self.state = host, device, run, RankState.RUNNING
            case messages.Done():
                self.state = RankState.DONE
            case messages.Saving():
                self.saving = True
            case _:
                pass

    @property
    def is_over(self) -> bool:
        """Whether it has exited, or the connection to its agent is lost."""
        return self.state in {RankState.EXITED, RankState.LOST}

    @property
    def has_ended_well(self) -> bool:
        """Whether its program has ended, and not by a failure."""
        return not self.failure and (self.state is RankState.DONE or self.exit_code == 0)

    @property
    def is_working(self) -> bool:
        """Whether its program still runs, as far as the monitor knows."""
        return self.state in {RankState.STARTING, RankState.RUNNING}
