"""All ranks or none."""

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.agreement import agree
from unilaunch.errors import InputError, RefusedTogetherError, RendezvousError
from unilaunch.rank.alone import Alone


class _Table(Alone):
    """Peers whose other answers are known."""

    def __init__(self, before: list[JsonValue], after: list[JsonValue]) -> None:
        self.before, self.after = before, after

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        return [*self.before, value, *self.after]


def test_agreed_when_nobody_refuses() -> None:
    """Then nothing happens."""
    agree(_Table([None], [None]), None)


def test_the_lowest_ranks_refusal_is_everyones() -> None:
    """Its words and its exit code, and whose they are where not all refuse."""
    with pytest.raises(RefusedTogetherError, match="the first") as refusal:
        agree(_Table([None, ["the first", 1, "a"]], [["another", 2, "b"]]), InputError("mine"))
    assert refusal.value.exit_code == 1
    assert str(refusal.value) == "rank 1 on a: the first"


@pytest.mark.parametrize(("error", "code"), [(InputError("no"), 2), (RendezvousError("no"), 1)])
def test_one_rank_refuses_as_many(error: InputError | RendezvousError, code: int) -> None:
    """The exit code goes with it."""
    with pytest.raises(RefusedTogetherError, match="no") as refusal:
        agree(Alone(), error)
    assert refusal.value.exit_code == code
