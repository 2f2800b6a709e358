"""How far a rank has come: what its model notes, and what the live line, a failure and a stack trace say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """The step that a rank is in.

    Attributes:
        kind: What the model counts: "batch".
        number: Which one it is, from 1.
        total: Number of steps of the run; None if it is unknown.
        values: Figures of the last step by name, such as {"error": 0.7}. Who has none of a name gives None.
        busy: Seconds of the last step in which this rank did not wait for others; None if they are unknown. From them
            `launch` names the slowest rank.
        received: Bytes that came from other ranks in the last step; live metrics show them, other records do not.
    """

    kind: str
    number: int
    total: int | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    busy: float | None = None
    received: int = 0

    def as_facts(self) -> dict[str, Any]:
        """Return the step as JSON; a figure that is no finite number is left out."""
        values = {name: float(value) for name, value in self.values.items() if value is not None and isfinite(value)}
        busy = None if self.busy is None or not isfinite(self.busy) else float(self.busy)
        return {"step": self.kind, "number": self.number, "total": self.total, "values": values, "busy": busy}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Step | None":
        """Return the step among what a rank has noted; None if it has noted none."""
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

    @property
    def place(self) -> str:
        """The step as a sentence names it: "batch 3 of 200"."""
        return f"{self.kind} {self.number}" + ("" if self.total is None else f" of {self.total}")


def _is_figure(value: object) -> bool:
    return isinstance(value, float) and isfinite(value)
