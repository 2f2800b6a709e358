"""Read the stacks of a rank: a signal makes the rank write them into a pipe to its agent."""

import os
import time
from contextlib import suppress

from unilaunch.agent.channel import STACKS
from unilaunch.agent.processes import catches, state

NEVER = float("inf")
#: Seconds in which a rank begins to write: it writes as soon as it gets a CPU.
_BEGUN = 4.0
#: Seconds without new text after which the stacks are complete.
_WRITTEN = 0.3


class StackReader:
    """Reads a rank's stacks.

    Args:
        pipe: The pipe to which the rank writes them.

    Attributes:
        due: When the text is complete, in seconds of `time.monotonic`; NEVER if the stacks were not requested.
    """

    def __init__(self, pipe: int) -> None:
        self.pipe, self.rank = pipe, 0
        self.text = b""
        self.due = NEVER

    def begin(self, rank: int) -> None:
        """Let the process *rank* write its stacks. If it cannot, a line says why: the signal would kill it."""
        self.rank, self.text = rank, b""
        if state(rank) in {"T", "t"}:
            self.text = b"stopped (SIGSTOP)"
        elif not catches(rank, STACKS):
            self.text = b"no Python stack: it is starting or exiting, or has become another program"
        else:
            with suppress(ProcessLookupError):
                os.kill(rank, STACKS)
        self.due = time.monotonic() + (_WRITTEN if self.text else _BEGUN)

    def hear(self) -> bool:
        """Read what the rank writes; False at the end of the pipe."""
        data = os.read(self.pipe, 1 << 16)
        self.text += data
        self.due = time.monotonic() + _WRITTEN if data else self.due
        return bool(data)

    def take(self, now: float) -> str | None:
        """Return the stacks once, when they are complete; None at any other time."""
        if now <= self.due:
            return None
        self.due = NEVER
        silent = f"no answer in {_BEGUN:g} s (process state {state(self.rank) or 'ended'})"
        return self.text.decode(errors="replace") or silent
