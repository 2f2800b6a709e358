"""The messages between rank, agent and monitor: each survives the transfer, and other data is refused."""

import json
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unilaunch.folder.failure import Cause, Failure
from unilaunch.monitor.messages import NO_RANK, BadMessageError, Message, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.lists(st.text(), max_size=3).map(tuple)
TABLE = st.dictionaries(st.text(), JSON, max_size=3)
FAILURES = st.builds(
    Failure, cause=st.sampled_from(Cause), message=st.text(), exit_code=st.integers(), progress=TABLE, traceback=TEXTS,
    last_lines=TEXTS, evidence=TEXTS, time=st.floats(0, 1e10),
)  # fmt: skip
#: By the hint of a field that cannot be drawn from its type alone.
DRAWN: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON, Failure: FAILURES, float: st.floats(allow_nan=False), float | None: st.none() | st.floats(0, 9),
}  # fmt: skip


def _drawn(hint: Any) -> st.SearchStrategy[Any]:
    if "dict" in str(hint):
        return st.none() | TABLE if "None" in str(hint) else TABLE
    return DRAWN[hint] if hint in DRAWN else st.from_type(hint)


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(st.data())
def test_every_message_makes_the_way(kind: type[Message], data: st.DataObject) -> None:
    """As one line, equal and of the same types."""
    hints = get_type_hints(kind)
    message = kind(**{field.name: data.draw(_drawn(hints[field.name])) for field in fields(kind)})
    rank = data.draw(st.integers(NO_RANK, 10**6))
    line = encode(message, rank)
    assert line.count(b"\n") == 1
    assert decode(line) == (rank, message)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_no_message(line: bytes) -> None:
    """Whatever it is, it ends in one kind of error."""
    with pytest.raises(BadMessageError):
        decode(line)


@pytest.mark.parametrize("line", [
    b"[" * 100_000, b'["1", "Done", {}]', b'[1, "__class__", {}]',
    b'[1, "Exited", {"exit_code": true}]', b'[1, "Exited", {"exit_code": 1, "more": 2}]',
    b'[1, "Failed", {"failure": {"cause": 3, "message": "", "exit_code": 1}}]',
    b'[1, "Progress", {"facts": [], "age": 1}]', b'[1, "Progress", {"facts": {}, "age": 1' + 400 * b"0" + b"}]",
])  # fmt: skip
def test_what_is_nearly_a_message_is_none(line: bytes) -> None:
    with pytest.raises(BadMessageError):
        decode(line)
