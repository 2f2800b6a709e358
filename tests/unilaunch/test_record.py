"""Records: what frozen dataclasses are, for users' programs hold some of ours (a World, a Failure)."""

import dataclasses
from collections.abc import Sequence

import pytest

from unilaunch.record import Record, field, replace


class Point(Record):
    """A record."""

    x: int
    y: int = 2
    seen: Sequence[int] = field(default_factory=list)


class Named(Point):
    """A record with one more field."""

    name: str = "?"


def test_a_record_is_what_a_dataclass_is() -> None:
    """Made, compared, shown and copied so; a default is made anew."""
    point = Point(1, seen=[])
    assert Point(1).seen is not Point(1).seen
    assert point == Point(x=1, y=2)
    assert point not in [Named(1), replace(point, y=3)]
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, seen=[], name='a')"
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="expected x, y, seen"):
        Point(1, x=2)  # type: ignore[misc]
    assert [one.name for one in dataclasses.fields(point)] == ["x", "y", "seen"]
    assert dataclasses.replace(point, y=7) == Point(1, 7)
    assert dataclasses.asdict(Named(1)) == {"x": 1, "y": 2, "seen": [], "name": "?"}
