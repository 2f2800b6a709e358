"""The progress of a rank: its model reports steps; the live line, failures and stack traces show them."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from unilaunch.record import Record, field

#: In the facts of a rank that is in no step: the facts of its last one.
LAST = "last_step"


class Step(Record):
    """The step that a rank is in.

    Attributes:
        kind: What the model counts: "batch".
        number: Its number, from 1.
        total: Number of steps of the run; None if it is unknown.
        values: Numbers of the last step by name, such as {"error": 0.7}; None for a name without a number.
        busy: Seconds of the last step in which this rank did not wait for others; None if they are unknown. With them
            `launch` finds the slowest rank.
        received: Bytes received from other ranks in the last step; only live metrics show them.
    """

    kind: str
    number: int
    total: int | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    busy: float | None = None
    received: int = 0

    def as_facts(self) -> dict[str, Any]:
        """Return the step as JSON, also of numpy's numbers; values that are not finite numbers are omitted."""
        total = None if self.total is None else int(self.total)
        values = {name: float(value) for name, value in self.values.items() if value is not None and isfinite(value)}
        busy = None if self.busy is None or not isfinite(self.busy) else float(self.busy)
        return {"step": self.kind, "number": int(self.number), "total": total, "values": values, "busy": busy}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Step | None":
        """Return the step in the facts that a rank has reported; None if there is none."""
        kind, number, total = facts.get("step"), facts.get("number"), facts.get("total")
        values, busy = facts.get("values"), facts.get("busy")
        if not isinstance(kind, str) or not isinstance(number, int):
            return None
        return cls(
            kind,
            number,
            total if isinstance(total, int) else None,
            {name: value for name, value in values.items() if _is_figure(value)} if isinstance(values, dict) else {},
            busy if _is_figure(busy) else None,
        )

    @classmethod
    def last_from_facts(cls, facts: Mapping[str, Any]) -> "Step | None":
        """Return the step in the facts that a rank has reported, or the last one before them; None if there is none."""
        last = facts.get(LAST)
        return cls.from_facts(facts) or (cls.from_facts(last) if isinstance(last, dict) else None)

    @property
    def place(self) -> str:
        """The step as text for a sentence: "batch 3 of 200"."""
        return f"{self.kind} {self.number}" + ("" if self.total is None else f" of {self.total}")


def _is_figure(value: object) -> bool:
    return isinstance(value, float) and isfinite(value)
