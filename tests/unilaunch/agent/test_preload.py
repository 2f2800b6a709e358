"""What is imported before the ranks are forked: in an interpreter of its own, since an import stays."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from unilaunch.agent.preload import first_import
from unilaunch.spec.target import Target

PROGRAM = """
import json, os, sys
from unilaunch.agent import preload as module
from unilaunch.agent.preload import preload
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec
module.visible_devices = lambda environ: {"cuda": [*environ["CUDA_VISIBLE_DEVICES"]]}  # this host may have no GPU
for options, devices in json.loads(sys.argv[1]):
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
    found = preload(read_task(RunSpec, {"target": "train.py", **options}, environ), environ)
    print(found is not None, 'torch' in sys.modules)
"""


def test_a_framework_on_processors_only(tmp_path: Path) -> None:
    """Where a device is seen every rank imports it by itself; and it is the one that the program imports."""
    (tmp_path / "train.py").write_text("import torch\n")
    none = [({}, "0"), *[({"backend": "mindspore"}, "")] * bool(find_spec("mindspore"))]
    cases = json.dumps([*none, ({"device": "cpu"}, "0"), ({}, "")])  # an import stays: these two are the last
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "UNILAUNCH_"))}  # noqa: TID251
    line = [sys.executable, "-c", PROGRAM, cases]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True, env=own)
    assert done.stdout.splitlines() == ["False False"] * len(none) + ["True True"] * 2


@pytest.mark.parametrize(("text", "neighbour", "expected"), [
    ("import torch\n", "", "torch"),
    ("'''What it does.'''\nfrom __future__ import annotations\nimport os, sys\nimport torch.nn as nn\n", "", "torch"),
    ("import numpy as np\nimport mindspore as ms\nimport torch\n", "", "mindspore"),
    ("RATE = 0.1\nfrom torch.nn.parallel import DistributedDataParallel\n", "", "torch"),
    ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n", "", None),
    ("import settings\nimport torch\n", "", None),
    ("import torch_geometric\nimport torch\n", "", None),
    ("try:\n    import torch\nexcept ImportError:\n    torch = None\n", "", None),
    ("def main():\n    import torch\n", "", None),
    ("print('hello')\nimport torch\n", "", None), ("import torch as\n", "", None), ("", "", None),
    ("import torch\n", "torch.py", None), ("import random\nimport numpy\nimport torch\n", "random.py", None),
    ("import torch\n", "torch/", None), ("import random\nimport numpy\nimport torch\n", "numpy/", None),
])  # fmt: skip
def test_a_script(text: str, neighbour: str, expected: str | None, tmp_path: Path) -> None:
    """What stands before the import must not be able to change it; nor a neighbour that Python would find before."""
    (tmp_path / "train.py").write_text(text)
    path = tmp_path / neighbour
    path.touch() if path.suffix == ".py" else path.mkdir(exist_ok=True)
    assert first_import(Target("script", str(tmp_path / "train.py")), ("torch", "mindspore")) == expected
