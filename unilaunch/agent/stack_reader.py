"""Read the stacks that a rank writes into a pipe to its agent: at a signal that asks for it, or at a crash."""

import os
import time
from contextlib import suppress

from unilaunch.agent.channel import STACKS
from unilaunch.agent.processes import catches, state
from unilaunch.monitor.stacks import without_launcher

NEVER = float("inf")
#: Seconds in which a rank begins to write: it writes as soon as it gets a CPU.
_BEGUN = 4.0
#: Seconds without new text after which the stacks are complete.
_WRITTEN = 0.3
#: How faulthandler's text on a crash begins.
_CRASH = b"Fatal Python error: "


class StackReader:
    """Reads a rank's stacks.

    Attributes:
        due: When the text is complete, in seconds of `time.monotonic`; NEVER if the stacks were not requested.
    """

    def __init__(self, pipe: int) -> None:
        self.pipe, self.pid = pipe, 0
        self.text = b""
        self.due = NEVER
        self.heard = 0.0

    def begin(self, pid: int) -> None:
        """Let the rank, process *pid*, write its stacks. If it cannot, a line says why: the signal would kill it."""
        self.pid, self.text = pid, b""
        if state(pid) in {"T", "t"}:
            self.text = b"stopped (SIGSTOP)"
        elif not catches(pid, STACKS):
            self.text = b"no Python stack: it is starting or exiting, or has become another program"
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, STACKS)
        self.due = time.monotonic() + (_WRITTEN if self.text else _BEGUN)

    def hear(self) -> bool:
        """Read what the rank writes; False at the end of the pipe."""
        data = os.read(self.pipe, 1 << 16)
        self.text += data
        self.heard = time.monotonic()
        self.due = self.heard + _WRITTEN if data and self.due < NEVER else self.due
        return bool(data)

    def take_crash(self, now: float) -> str:
        """Return the stack of a crash of the rank, or of a process that it has forked, once it is complete; else ""."""
        begin = self.text.find(_CRASH)
        if begin < 0 or now <= self.heard + _WRITTEN:
            return ""
        self.text, crash = self.text[:begin], self.text[begin:]
        return without_launcher(crash.decode(errors="replace"))

    def take_last_crash(self) -> str:
        """Return the same of a rank that has exited; a process that it has started may keep the pipe open."""
        os.set_blocking(self.pipe, False)
        with suppress(BlockingIOError):
            while self.hear():
                pass
        return self.take_crash(NEVER)

    def take(self, now: float) -> str | None:
        """Return the stacks once, when they are complete; None at any other time."""
        if now <= self.due:
            return None
        self.due = NEVER
        silent = f"no answer in {_BEGUN:g} s (process state {state(self.pid) or 'ended'})"
        return self.text.decode(errors="replace") or silent
