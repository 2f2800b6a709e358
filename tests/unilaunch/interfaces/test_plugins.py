"""Backends, models and commands by entry point."""

import pytest

from unilaunch.errors import PluginError
from unilaunch.interfaces import plugins


def test_what_is_installed_is_found() -> None:
    """Through the door that a third party's plug-ins take too."""
    assert list(plugins.models()) == ["calibration", "gcn", "mnist"]
    assert list(plugins.commands()) == ["logs", "partition", "plan", "predict", "report", "schema", "stacks", "status"]
    assert plugins.load_backend("mindspore", here=False).name == "mindspore"


def test_auto_takes_torch_first() -> None:
    """It is installed here, as MindSpore is."""
    assert plugins.load_backend("auto").name == "torch"


@pytest.mark.parametrize(
    ("name", "there", "words"),
    [
        ("auto", [], r"no framework is installed: pip install 'unilaunch\[torch\]'"),
        ("torch", ["mindspore"], r"backend 'torch' needs its framework: pip install 'unilaunch\[torch\]'"),
        ("mindspore", ["torch"], r"pip install 'unilaunch\[mindspore\]'"),
    ],
)
def test_a_missing_framework_is_one_command_away(
    name: str, there: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command to type is in the message."""
    monkeypatch.setattr(plugins, "find_spec", lambda package: package if package in there else None)
    with pytest.raises(PluginError, match=words):
        plugins.load_backend(name)


def test_auto_takes_the_framework_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only MindSpore is installed it is MindSpore."""
    monkeypatch.setattr(plugins, "find_spec", lambda package: package if package == "mindspore" else None)
    assert plugins.load_backend("auto").name == "mindspore"
