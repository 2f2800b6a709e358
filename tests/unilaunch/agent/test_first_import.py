"""A framework is imported beforehand only where a program would have found the same."""

from pathlib import Path

import pytest

from unilaunch.agent.preload import first_import
from unilaunch.spec.target import Target

FRAMEWORKS = ("torch", "mindspore")


@pytest.mark.parametrize(("text", "expected"), [
    ("import torch\n", "torch"),
    ("'''What it does.'''\nfrom __future__ import annotations\nimport os, sys\nimport torch.nn as nn\n", "torch"),
    ("import numpy as np\nimport mindspore as ms\nimport torch\n", "mindspore"),
    ("RATE = 0.1\nfrom torch.nn.parallel import DistributedDataParallel\n", "torch"),
    ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n", None),
    ("import os\nVALUE = os.environ.setdefault('OMP_NUM_THREADS', '4')\nimport torch\n", None),
    ("import settings\nimport torch\n", None),
    ("from . import settings\nimport torch\n", None),
    ("import torch_geometric\nimport torch\n", None),
    ("try:\n    import torch\nexcept ImportError:\n    torch = None\n", None),
    ("if True:\n    import torch\n", None),
    ("def main():\n    import torch\n", None),
    ("print('hello')\nimport torch\n", None),
    ("import os\n", None),
    ("import torch as\n", None),
    ("", None),
])  # fmt: skip
def test_a_script(text: str, expected: str | None, tmp_path: Path) -> None:
    """What stands before the import must not be able to change it."""
    script = tmp_path / "train.py"
    script.write_text(text)
    assert first_import(Target("script", str(script)), FRAMEWORKS) == expected


@pytest.mark.parametrize("neighbour", ["torch.py", "torch", "random.py", "numpy"])
def test_a_neighbour_of_the_same_name(neighbour: str, tmp_path: Path) -> None:
    """Python would find it before the library."""
    (tmp_path / "train.py").write_text("import random\nimport numpy\nimport torch\n")
    path = tmp_path / neighbour
    path.write_text("") if path.suffix else path.mkdir()
    assert first_import(Target("script", str(tmp_path / "train.py")), FRAMEWORKS) is None


def test_a_module_and_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What their packages execute comes first."""
    for folder, text in (("plain", "'''A package.'''\n"), ("loud", "import logging\nlogging.basicConfig()\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(text)
        (tmp_path / folder / "train.py").write_text("import torch\n")
        (tmp_path / folder / "__main__.py").write_text("import mindspore\n")
    monkeypatch.chdir(tmp_path)
    targets = [Target("module", name) for name in ("plain", "plain.train", "loud.train", "math")]
    targets += [Target("function", f"{name}:main") for name in ("plain.train", "loud.train", "nowhere")]
    found = {target.name: first_import(target, FRAMEWORKS) for target in targets}
    assert found == {
        "plain": "mindspore", "plain.train": "torch", "plain.train:main": "torch", "loud.train": None,
        "loud.train:main": None, "nowhere:main": None, "math": None,
    }  # fmt: skip


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    """It is not this module's to refuse it."""
    assert first_import(Target("script", str(tmp_path / "none.py")), FRAMEWORKS) is None
