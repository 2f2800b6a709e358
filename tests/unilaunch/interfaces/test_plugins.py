"""Backends, models and commands by entry point."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from unilaunch.errors import PluginError
from unilaunch.interfaces import plugins


def test_what_is_installed_is_found() -> None:
    """Through the door that a third party's plug-ins take too."""
    assert list(plugins.models()) == ["calibration", "gcn", "mnist"]
    assert list(plugins.commands()) == ["logs", "partition", "plan", "predict", "report", "schema", "stacks", "status"]
    assert plugins.load_backend("mindspore", here=False).name == "mindspore"
    assert plugins.load_backend("auto").name == "torch"


@pytest.mark.parametrize(("name", "there", "words"), [
    ("auto", [], r"no framework is installed: pip install 'unilaunch\[torch\]'"),
    ("torch", ["mindspore"], r"backend 'torch' needs its framework: pip install 'unilaunch\[torch\]'"),
    ("mindspore", ["torch"], r"pip install 'unilaunch\[mindspore\]'"),
])  # fmt: skip
def test_a_missing_framework_is_one_command_away(
    name: str, there: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command to type is in the message."""
    monkeypatch.setattr(plugins, "find_spec", lambda package: package if package in there else None)
    with pytest.raises(PluginError, match=words):
        plugins.load_backend(name)
    assert not there or plugins.load_backend("auto").name == there[0]


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
