"""Records: what frozen dataclasses are."""

import dataclasses
import inspect
import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from unilaunch.folder.failure import Failure, describe_exit
from unilaunch.record import Record, field, replace


class Point(Record):
    """A record."""

    x: int
    y: int = 2
    seen: Sequence[int] = field(default_factory=list)


class Named(Point):
    """A record with one more field."""

    name: str = "?"


class Counter(Record, frozen=False):
    """A record that changes."""

    count: int = 0


def test_a_record_is_a_value() -> None:
    """Made, compared, shown and copied as a dataclass is; a default is made anew."""
    point = Point(1, seen=[])
    assert (point.x, point.y, point.seen) == (1, 2, [])
    assert Point(1).seen is not Point(1).seen
    assert point == Point(x=1, y=2)
    assert point not in [Named(1), replace(point, y=3)]
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, seen=[], name='a')"
    assert hash(Point(1, 2, ())) == hash(Point(1, 2, ()))
    match replace(point, x=5):
        case Point(x, y):
            assert (x, y) == (5, 2)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    assert str(inspect.signature(Named)).startswith("(x: int, y: int = 2, ")
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, (), 4), {}), ((1,), {"x": 2}), ((1,), {"z": 1})], ids=str
)
def test_wrong_fields_are_refused(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A missing field, one too many, one given twice, and an unknown one."""
    with pytest.raises(TypeError, match="expected x, y, seen"):
        Point(*values, **named)


def test_functions_of_dataclasses_take_a_record() -> None:
    """Users' programs hold records of ours: a World, a Failure."""
    point = Point(1)
    assert [one.name for one in dataclasses.fields(point)] == ["x", "y", "seen"]
    assert dataclasses.replace(point, y=7) == Point(1, 7)
    assert dataclasses.asdict(Named(1)) == {"x": 1, "y": 2, "seen": [], "name": "?"}


def test_pydantic_reads_a_record() -> None:
    """As `report` reads a rank's failure.json: every field is checked."""
    failure = describe_exit(-9)
    adapter = TypeAdapter(Failure)
    assert adapter.validate_json(json.dumps(vars(failure))) == failure
    with pytest.raises(ValidationError, match="3 validation errors"):
        adapter.validate_json('{"cause": 3, "message": 3, "exit_code": "x"}')
