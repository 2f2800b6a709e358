"""The status page: memory that a rank shares with its agent, which can still read it after the rank was killed."""

import json
import mmap
import struct
from typing import Any, NamedTuple

_SLOT = 1 << 16  # bytes of one status; memory that is never written costs nothing
_COUNT = struct.Struct("=QII")
_PACE = struct.Struct("=QdQ")
_WAITING = _COUNT.size + _PACE.size  # offset of one byte
_SLOTS = 64  # offset of the first status, after the count, the pace, and whether the rank waits


class Pace(NamedTuple):
    """A rank's counters since its start; they only grow.

    Attributes:
        steps: Steps of a model, or waits of a script for other ranks.
        busy: Seconds of these steps in which the rank did not wait for other ranks.
        received: Bytes received from other ranks, if the model counts them.
    """

    steps: int = 0
    busy: float = 0.0
    received: int = 0


class StatusPage:
    """Double-buffered status: if the rank is killed while it writes, the previous status is intact."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SLOTS + 2 * _SLOT)
        self.count = 0
        self.sizes = [0, 0]
        self.facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Add *facts*, which must be JSON, to the status; a new phase starts without the facts of the previous one.

        Facts that are too long are left out, longest first.
        """
        known = facts if "phase" in facts else self.facts | facts
        while len(text := json.dumps(known, allow_nan=False).encode()) > _SLOT:
            longest = max(known, key=lambda name: len(json.dumps(known[name])))
            known = {name: value for name, value in known.items() if name != longest}
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
        except ValueError:  # there is no status yet, or a newer one was written meanwhile
            return count, {}

    def note_pace(self, pace: Pace) -> None:
        """Write the pace; this takes less than a microsecond."""
        _PACE.pack_into(self.memory, _COUNT.size, *pace)

    def note_waiting(self, *, waiting: bool) -> None:
        """Write whether the rank waits for other ranks; this takes a tenth of a microsecond."""
        self.memory[_WAITING] = waiting

    @property
    def is_waiting(self) -> bool:
        """Whether the rank waits for other ranks in a collective."""
        return bool(self.memory[_WAITING])

    def read_pace(self) -> Pace:
        """Return the newest pace."""
        return Pace(*_PACE.unpack_from(self.memory, _COUNT.size))
