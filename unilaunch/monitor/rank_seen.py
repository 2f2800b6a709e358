"""What the monitor knows of one rank: what the rank and its agent have told."""

import time
from dataclasses import dataclass, field
from enum import Enum

from unilaunch.json_value import JsonValue
from unilaunch.monitor import messages
from unilaunch.monitor.messages import OfAgent, OfRank
from unilaunch.output.failure import Cause, Failure

_NOTHING = messages.Progress({}, 0.0)


class RankState(Enum):
    """How far a rank has come, as the monitor knows it."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    EXITED = "exited"
    LOST = "lost"


@dataclass(slots=True)
class RankSeen:
    """What a rank and its agent have told; a later word takes the place of an earlier one.

    Attributes:
        state: How far it has come.
        host: Where it runs; "?" before it has said so, like the device.
        run: The run that it says it is of, once it has an output folder.
        progress: What it is doing.
        pace: What it has told last of its steps, its busy seconds, received bytes and memory.
        step_seconds: Seconds of a step of late; 0 before that is known.
        moved: When it last made progress, in seconds of `time.monotonic`.
        failure: How it failed.
        lost: Why nobody hears of it any more.
        exit_code: With what it exited; None if it was ordered to.
        overdue: It did not end in the time that the user gave it.
        value: What its function returned.
        result: What its model returned.
        stack: Where it stood when it was asked.
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
    _stepped: float = 0.0

    def hear(self, message: OfRank | OfAgent) -> None:
        """Keep what is told."""
        age = 0.0
        match message:
            case messages.Stack():
                self.stack = message
                return  # no progress
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
            case _:
                pass

    @property
    def is_over(self) -> bool:
        """It has exited, or nobody hears of it any more."""
        return self.state in {RankState.EXITED, RankState.LOST}

    @property
    def is_working(self) -> bool:
        """Its program has not ended, as far as that is known."""
        return self.state in {RankState.STARTING, RankState.RUNNING}
