"""Records: what frozen dataclasses are."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import pytest

from unilaunch.record import Record, field, replace


class Point(Record):
    """A record."""

    x: int
    y: int = 2
    seen: Sequence[int] = field(default_factory=list)


class Named(Point):
    """A record with one more field, and with something that all have."""

    kind: ClassVar[str] = "of points"
    name: str = "?"


def test_a_record_is_a_value() -> None:
    """Made, compared, shown and copied as a dataclass is; a default is made anew."""
    point = Point(1, seen=[])
    assert Point(1).seen is not Point(1).seen
    assert point == Point(x=1, y=2)
    assert point not in [Named(1), replace(point, y=3)]
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, seen=[], name='a')"
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="expected x, y, seen"):
        Point(1, x=2)  # type: ignore[misc]


def test_functions_of_dataclasses_take_a_record() -> None:
    """Users' programs hold records of ours: a World, a Failure."""
    point = Point(1)
    assert [one.name for one in dataclasses.fields(point)] == ["x", "y", "seen"]
    assert dataclasses.replace(point, y=7) == Point(1, 7)
    assert dataclasses.asdict(Named(1)) == {"x": 1, "y": 2, "seen": [], "name": "?"}
