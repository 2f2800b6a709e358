"""Entry points: read as importlib.metadata reads them, or taken over from `launch`."""

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unilaunch.errors import PluginError
from unilaunch.interfaces import plugins


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    """A test may take another table over."""
    before = dict(plugins.table())
    yield
    plugins.use_table(before)


def _install(folder: Path, name: str, text: str) -> None:
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(text)


def test_they_are_those_of_importlib_metadata() -> None:
    """In every group of ours; other groups are left out."""
    distributions = importlib.metadata.distributions()
    groups = {entry.group for distribution in distributions for entry in distribution.entry_points}
    found = plugins.scan(sys.path)
    assert set(found) == {group for group in groups if group.startswith("unilaunch.")}
    for group, entries in found.items():
        assert entries == {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}


def test_the_first_distribution_of_a_name_counts(tmp_path: Path) -> None:
    """An old one further back adds nothing; a distribution of another name does."""
    _install(tmp_path / "new", "My.Thing", "[unilaunch.models]\na = new:A\n# b = new:B\n[other]\nc = new:C\n")
    _install(tmp_path / "old", "my_thing", "[unilaunch.models]\na = old:A\nold = old:A\n")
    _install(tmp_path / "old", "else", "[unilaunch.models]\na = else:A\nd=else:D [extra]\n")
    folders = [str(tmp_path / name) for name in ("missing", "new", "old")]
    assert plugins.scan(folders) == {"unilaunch.models": {"a": "new:A", "d": "else:D [extra]"}}


@pytest.mark.parametrize(("value", "words"), [
    ("no_such_module:A", "model 'x' (no_such_module:A) cannot be loaded: ModuleNotFoundError"),
    ("json:Missing", "cannot be loaded: AttributeError"),
    ("json:loads", "cannot be loaded: TypeError"),
])  # fmt: skip
def test_what_cannot_be_loaded_is_one_line(value: str, words: str) -> None:
    """Whatever it raises."""
    plugins.use_table({"unilaunch.models": {"x": value}})
    with pytest.raises(PluginError) as refusal:
        plugins.make("unilaunch.models", "model", "x")
    assert words in str(refusal.value)


def test_a_table_that_was_taken_over_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank under launch reads no folder."""
    monkeypatch.setattr(plugins, "scan", None)
    plugins.use_table(json.loads('{"unilaunch.models": {"list": "builtins:list"}}'))
    assert plugins.names("unilaunch.models") == ["list"]
    assert plugins.make("unilaunch.models", "model", "list") == []
    with pytest.raises(PluginError, match="no backend 'torch'; installed: none"):
        plugins.make("unilaunch.backends", "backend", "torch")
