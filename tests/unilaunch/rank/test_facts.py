"""The first facts that ranks exchange."""

import json
import os
from typing import Any, cast

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.errors import RefusedTogetherError
from unilaunch.rank.alone import Alone
from unilaunch.rank.facts import tell_facts
from unilaunch.reading import make_task, read_task
from unilaunch.spec import RunSpec
from unilaunch.target import Target


class _Beside(Alone):
    """Rank 0 beside a rank with another task."""

    def __init__(self, **told: JsonValue) -> None:
        self.told = told

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        mine = cast("dict[str, Any]", json.loads(json.dumps(value)))
        return [mine, {**mine, "told": "another digest"} if "facts" in mine else mine | self.told]


class _Weighed(Alone):
    """One rank, which weighs what it sends."""

    sent = 0

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        self.sent += len(json.dumps(value))
        return super().share(value)


def test_facts_are_this_processes() -> None:
    """Its cores, and the devices that its environment shows."""
    (facts,) = tell_facts(
        read_task(RunSpec, {}, {}), Alone(), {"CUDA_VISIBLE_DEVICES": "0", "ASCEND_RT_VISIBLE_DEVICES": ""}, "", ""
    )
    assert facts["cores"] == sum(1 << cpu for cpu in os.sched_getaffinity(0))
    assert facts["devices"] == {"cuda": ["0"], "npu": []}
    assert facts["host"].startswith(f"{facts['name']} ")


def test_large_arguments_are_not_sent() -> None:
    """Rank 0 would send those of every rank to every rank: 6.6 GB for 256 ranks with 100 kB each."""
    ranks = _Weighed()
    target = Target("module", "tool")
    task = make_task(RunSpec, target, {"target": "-m tool", "args": ["x" * 100_000]}, {})
    tell_facts(task, ranks, {}, "", "")
    assert ranks.sent < 2_000


@pytest.mark.parametrize(
    ("told", "words"),
    [({"epochs": 3}, "epochs=200 and rank 1 epochs=3"), ({"backend": "mindspore"}, "backend='torch' and rank 1")],
)
def test_ranks_that_were_told_different_things_are_refused(told: dict[str, JsonValue], words: str) -> None:
    """Both values are named, on every rank alike, before anything waits for the other."""
    with pytest.raises(RefusedTogetherError, match=words) as refusal:
        tell_facts(read_task(RunSpec, {"backend": "torch"}, {}), _Beside(**told), {}, "", "")
    assert refusal.value.exit_code == 2
