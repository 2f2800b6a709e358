"""All ranks or none."""

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.errors import InputError, PlacementError, RefusedTogetherError
from unilaunch.interfaces.agreement import agree
from unilaunch.rendezvous.alone import Alone


class _Table(Alone):
    """Peers whose other answers are known."""

    def __init__(self, before: list[JsonValue], after: list[JsonValue]) -> None:
        self.before, self.after = before, after

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        return [*self.before, value, *self.after]


def test_the_lowest_ranks_refusal_is_everyones() -> None:
    """Its words and its exit code, and whose they are where not all refuse."""
    agree(_Table([None], [None]), None)  # nobody does
    with pytest.raises(RefusedTogetherError, match="the first") as refusal:
        agree(_Table([None, ["the first", 1, "a", False]], [["another", 2, "b", False]]), InputError("mine"))
    assert refusal.value.exit_code == 1
    assert str(refusal.value) == "rank 1 on a: the first"


def test_a_rank_is_named_once() -> None:
    """A device's error says whose it is; of rank 1 a text that begins as rank 10's does not."""
    for error, said in (
        (PlacementError("rank 1 on a: no GPU"), "rank 1 on a: no GPU"),
        (InputError("rank 10"), "rank 10"),
    ):
        with pytest.raises(RefusedTogetherError) as refusal:
            agree(_Table([None], []), error)
        assert str(refusal.value).endswith(said)
        assert str(refusal.value).startswith("rank 1 on ")
        assert str(refusal.value).count("rank 1 on") == 1
