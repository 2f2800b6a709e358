"""The status page: memory that a rank shares with its agent, which can read it after the rank was killed."""

import json
import mmap
import struct
from typing import Any, NamedTuple

_SLOT = 2000  # bytes of one status
_COUNT = struct.Struct("=QHH")
_PACE = struct.Struct("=QdQ")
_SLOTS = 64  # where the status begins, behind the count and the pace


class Pace(NamedTuple):
    """What a rank has done since its start; each number only grows.

    Attributes:
        steps: Steps of a model, or waits of a script for other ranks.
        busy: Seconds of them in which the rank did not wait for other ranks.
        received: Bytes that came from other ranks, where the model counts them.
    """

    steps: int = 0
    busy: float = 0.0
    received: int = 0


class StatusPage:
    """Double-buffered status: if the rank is killed while it writes, the status before is intact."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SLOTS + 2 * _SLOT)
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
        begin = _SLOTS + slot * _SLOT
        self.memory[begin : begin + len(text)] = text
        self.sizes[slot] = len(text)
        _COUNT.pack_into(self.memory, 0, self.count, *self.sizes)

    def read(self) -> tuple[int, dict[str, Any]]:
        """Return how often the status was written, and the newest one."""
        count, *sizes = _COUNT.unpack_from(self.memory)
        begin = _SLOTS + count % 2 * _SLOT
        try:
            return count, json.loads(self.memory[begin : begin + sizes[count % 2]])
        except ValueError:  # there is none yet, it is too long, or a newer one was written meanwhile
            return count, {}

    def note_pace(self, pace: Pace) -> None:
        """Note the pace; costs less than a microsecond."""
        _PACE.pack_into(self.memory, _COUNT.size, *pace)

    def read_pace(self) -> Pace:
        """Return the newest pace."""
        return Pace(*_PACE.unpack_from(self.memory, _COUNT.size))
