"""Where a rank stands: at a signal it writes its stacks into a pipe, and its agent reads them."""

import os
import time

NEVER = float("inf")
#: Seconds in which a rank begins to write: it does so at once, if it gets a processor.
_BEGUN = 4.0
#: Seconds without a word after which a rank has written all.
_WRITTEN = 0.3


class StackReader:
    """Reads a rank's stacks.

    Args:
        pipe: Where the rank writes them.

    Attributes:
        due: When the text is whole, in seconds of `time.monotonic`; NEVER if nobody has asked.
    """

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.text = b""
        self.due = NEVER

    def begin(self, *, stopped: bool) -> None:
        """Expect the stacks from now on; a rank that is stopped writes none."""
        self.text = b"stopped (SIGSTOP)" if stopped else b""
        self.due = time.monotonic() + (_WRITTEN if stopped else _BEGUN)

    def hear(self) -> bool:
        """Take what the rank writes; False at the end of the pipe."""
        data = os.read(self.pipe, 1 << 16)
        self.text += data
        self.due = time.monotonic() + _WRITTEN if data else self.due
        return bool(data)

    def take(self, now: float) -> str | None:
        """Return the stacks once they are whole; None before, and afterwards."""
        if now <= self.due:
            return None
        self.due = NEVER
        return self.text.decode(errors="replace")
