"""The first facts that ranks exchange."""

import json
from typing import Any, cast

import pytest
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.errors import RefusedTogetherError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.rank.identity import compare_programs, tell_facts
from unilaunch.rendezvous.alone import Alone
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec

_FOUND = LauncherInfo("none", 0, 1, 0, 1, "", {})


class _Beside(Alone):
    """Rank 0 beside a rank with another task."""

    def __init__(self, **told: JsonValue) -> None:
        self.told = told

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        mine = cast("dict[str, Any]", json.loads(json.dumps(value)))
        return [mine, {**mine, "told": "another digest"} if "facts" in mine else mine | self.told]


@pytest.mark.parametrize(
    ("told", "words"),
    [({"epochs": 3}, "epochs=200 and rank 1 epochs=3"), ({"backend": "mindspore"}, "backend='torch' and rank 1")],
)
def test_ranks_that_were_told_different_things_are_refused(told: dict[str, JsonValue], words: str) -> None:
    """Both values are named, on every rank alike, before anything waits for the other."""
    with pytest.raises(RefusedTogetherError, match=words) as refusal:
        tell_facts(read_task(RunSpec, {"backend": "torch"}, {}), _Beside(**told), {}, _FOUND, "")
    assert refusal.value.exit_code == 2


def test_another_python_is_said_and_another_unilaunch_is_refused() -> None:
    """With both ranks, and what to type."""
    first, second = ["a", "1.0", "3.11", "/venv/python"], ["b", "1.0", "3.12", "/usr/bin/python"]
    assert compare_programs([first, ["b", "1.0", "3.11", "/other/python"]]) == ""
    said = compare_programs([first, second, first])
    assert said.startswith("rank 1 on b has unilaunch 1.0 and Python 3.12 (/usr/bin/python), rank 0 on a ")
    assert said.endswith("type mpirun ... /venv/python -m unilaunch run ..., or add -x PATH")
    with pytest.raises(RefusedTogetherError, match="rank 2 on b has unilaunch 2"):
        compare_programs([first, first, ["b", "2.0", "3.11", "/venv/python"]])
