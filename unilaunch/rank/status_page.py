"""The status page: memory that a rank shares with its agent, which can read it after the rank was killed."""

import json
import mmap
import struct
from typing import Any

_SLOT = 2000  # bytes of one status
_COUNT = struct.Struct("=QHH")


class StatusPage:
    """Double-buffered status: if the rank is killed while it writes, the status before is intact."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _COUNT.size + 2 * _SLOT)
        self.count = 0
        self.sizes = [0, 0]
        self.facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Add *facts*, which must be JSON, to what stands here; a new phase begins without the old one's facts."""
        known = facts if "phase" in facts else self.facts | facts
        text = json.dumps(known, allow_nan=False).encode()[:_SLOT]
        self.facts = known
        self.count += 1
        slot = self.count % 2
        begin = _COUNT.size + slot * _SLOT
        self.memory[begin : begin + len(text)] = text
        self.sizes[slot] = len(text)
        _COUNT.pack_into(self.memory, 0, self.count, *self.sizes)

    def read(self) -> tuple[int, dict[str, Any]]:
        """Return how often the status was written, and the newest one."""
        count, *sizes = _COUNT.unpack_from(self.memory)
        begin = _COUNT.size + count % 2 * _SLOT
        try:
            return count, json.loads(self.memory[begin : begin + sizes[count % 2]])
        except ValueError:  # there is none yet, it is too long, or a newer one was written meanwhile
            return count, {}
