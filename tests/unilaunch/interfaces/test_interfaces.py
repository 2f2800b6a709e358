"""What ranks agree on, which rank is where, how far one has come, and plug-ins by entry point."""

import importlib.metadata
import json
import sys
from socket import gethostname
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import InputError, PlacementError, PluginError, RefusedTogetherError, RendezvousError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.agreement import agree
from unilaunch.interfaces.step import Step
from unilaunch.interfaces.world import LauncherInfo, count_world

HERE = gethostname()


@pytest.mark.parametrize(("errors", "refusal"), [
    ([None, None], ""),
    ([None, RendezvousError("the first"), InputError("another")], f"1: rank 1 on {HERE}: the first"),
    ([InputError("the same"), InputError("the same")], "2: the same"),
    ([None, PlacementError("rank 1 on a: no GPU")], "2: rank 1 on a: no GPU"),  # a rank is named once
    ([None, InputError("rank 10")], f"2: rank 1 on {HERE}: rank 10"),
])  # fmt: skip
def test_the_lowest_ranks_refusal_is_everyones(errors: list[Any], refusal: str) -> None:
    """Its words and its exit code, and whose they are where not all refuse."""

    def ask(rank: int, peers: RankInTurn) -> str:
        try:
            agree(peers, errors[rank])
        except RefusedTogetherError as error:
            return f"{error.exit_code}: {error}"
        return ""

    assert in_turns(len(errors), ask) == [refusal] * len(errors)


@pytest.mark.parametrize(("hosts", "local_ranks", "node_ranks"), [
    ("abab", [0, 0, 1, 1], [0, 1, 0, 1]), ("baab", [0, 0, 1, 1], [0, 1, 1, 0]),
    ("aabbbb", [0, 1, 0, 1, 2, 3], [0, 0, 1, 1, 1, 1]),
], ids=["round-robin", "interleaved", "slots 2 and 4"])  # fmt: skip
def test_placements(hosts: str, local_ranks: list[int], node_ranks: list[int]) -> None:
    size = len(hosts)
    found = [LauncherInfo("test", rank, size, 0, 1, "run", {}) for rank in range(size)]
    worlds = [count_world(found[rank], list(hosts), hosts[rank]) for rank in range(size)]
    assert [world.local_rank for world in worlds] == local_ranks
    assert [world.node_rank for world in worlds] == node_ranks
    assert [world.local_size for world in worlds] == [hosts.count(host) for host in hosts]
    assert {world.num_hosts for world in worlds} == {2}


@pytest.mark.parametrize(("local_size", "heads", "expected"), [
    (2, (), True), (1, (), False), (None, ("127.0.0.1",), True), (None, ("::1",), True),
    (None, ("localhost",), True), (None, ("node0", "127.0.0.1"), False),
])  # fmt: skip
def test_one_host(local_size: int | None, heads: tuple[str, ...], expected: bool) -> None:  # noqa: FBT001
    """The launcher counts two of two ranks here, or rank 0 can be reached on this host only."""
    assert LauncherInfo("test", 0, 2, None, local_size, "run", {}, rank_0_hosts=heads).one_host == expected


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(1, 10**9)
VALUES = st.dictionaries(st.text(), NUMBERS, max_size=3)


@given(st.builds(Step, st.text(), COUNTS, st.none() | COUNTS, VALUES, st.none() | NUMBERS))
def test_a_step_arrives_as_it_was_noted(step: Step) -> None:
    assert Step.from_facts(json.loads(json.dumps(step.as_facts()))) == step


@pytest.mark.parametrize("figure", [None, float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_no_number_is_left_out(figure: float | None) -> None:
    facts = Step("epoch", 3, values={"loss": figure, "norm": 2.0}, busy=figure).as_facts()
    assert facts == {"step": "epoch", "number": 3, "total": None, "values": {"norm": 2.0}, "busy": None}


def test_what_is_installed_is_found() -> None:
    assert list(plugins.models()) == ["calibration", "gcn", "mnist"]
    assert list(plugins.commands()) == ["logs", "partition", "plan", "predict", "report", "schema", "stacks", "status"]
    assert plugins.load_backend("mindspore", here=False).name == "mindspore"
    assert plugins.load_backend("auto").name == "torch"


@pytest.mark.parametrize(("name", "there", "words"), [
    ("auto", [], r"no framework is installed: pip install 'unilaunch\[torch\]'"),
    ("torch", ["mindspore"], r"backend 'torch' needs its framework: pip install 'unilaunch\[torch\]'"),
    ("mindspore", ["torch"], r"pip install 'unilaunch\[mindspore\]'"),
])  # fmt: skip
def test_a_missing_framework_is_named(name: str, there: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "find_spec", lambda package: package if package in there else None)
    with pytest.raises(PluginError, match=words):
        plugins.load_backend(name)
    assert not there or plugins.load_backend("auto").name == there[0]


def test_plug_ins_are_those_of_importlib_metadata() -> None:
    groups = {entry.group for one in importlib.metadata.distributions() for entry in one.entry_points}
    assert plugins.scan(sys.path) == {
        group: {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}
        for group in groups if group.startswith("unilaunch.")
    }  # fmt: skip
