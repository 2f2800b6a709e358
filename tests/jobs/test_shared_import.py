"""The framework is imported once for all ranks of a host, and nothing else is different.

That a model trains alike, to the last bit, is in test_same_training.py.
"""

import json
from pathlib import Path

import pytest

from jobs.mpirun import unilaunch

PROGRAM = Path(__file__).parent / "programs" / "own_libraries.py"


def test_a_program_finds_what_it_would_have_imported(tmp_path: Path) -> None:
    """Its threads in every library, its own random numbers; and the ranks come from one process."""
    told = []
    for command, ranks in (("launch -n 3", 3), ("run", 1)):
        (folder := tmp_path / command).mkdir()
        job = unilaunch([*command.split(), "--threads", "2", str(PROGRAM)], folder).check()
        told.append([json.loads(job.said(rank)) for rank in range(ranks)])
    shared, own = told
    assert len({each["above"] for each in shared}) == 1
    for drawn in ("numpy", "torch", "python"):
        assert len({each["drawn"][drawn] for each in shared}) == 3
    for each in (*shared, *own):
        assert (each["torch"], each["pools"], each["variable"]) == ([2, 2], [2, 2], "2")


@pytest.mark.parametrize("program", ["import torch", "import sys; print(sys.platform)\nimport torch"])
def test_only_what_a_program_imports_first_is_there_already(program: str, tmp_path: Path) -> None:
    """Behind anything else an import is the program's own: it may have set what the import reads."""
    (tmp_path / "train.py").write_text(
        f"{program}\nimport os\nfrom pathlib import Path\nPath(f'end.{{os.getpid()}}').touch()\n"
    )
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom importlib.abc import MetaPathFinder\n"
        "class Spy(MetaPathFinder):\n    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch.nn': Path(f'import.{os.getpid()}').touch()\n"
        "sys.meta_path.insert(0, Spy())\n"
    )
    unilaunch(["launch", "-n", "2", "train.py"], tmp_path, {"PYTHONPATH": str(spy)}).check()
    imported = {path.suffix for path in tmp_path.glob("import.*")}
    ended = {path.suffix for path in tmp_path.glob("end.*")}
    assert len(ended) == 2
    if program == "import torch":
        assert len(imported) == 1
        assert not imported & ended
    else:
        assert imported == ended
