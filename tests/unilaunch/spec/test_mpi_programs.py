"""Which programs need MPI: found in their sources, without running them."""

from pathlib import Path

import pytest

from unilaunch.spec.mpi_programs import LIBRARIES, find_import
from unilaunch.spec.target import Target


@pytest.mark.parametrize(("files", "target", "expected"), [
    ({"train.py": "import torch\n"}, Target("script", "train.py"), None),
    ({"train.py": "from mpi4py import MPI\n"}, Target("script", "train.py"), "mpi4py"),
    ({"train.py": "def main():\n    import horovod.torch as hvd\n"}, Target("script", "train.py"), "horovod"),
    ({"train.py": "import net\n", "net.py": "import petsc4py\n"}, Target("script", "train.py"), "petsc4py"),
    ({"train.py": "from lib.io import read\n", "lib/__init__.py": "", "lib/io.py": "from . import mesh\n",
      "lib/mesh.py": "import mpi4py.MPI\n"}, Target("script", "train.py"), "mpi4py"),
    ({"app/__init__.py": "", "app/__main__.py": "import mpi4py\n"}, Target("module", "app"), "mpi4py"),
    ({"app.py": "import mpi4py\n"}, Target("function", "app:main"), "mpi4py"),
    ({}, Target("function", "__main__:f", "import mpi4py\ndef f(): pass\n"), "mpi4py"),
    ({"train.py": "import net\n", "net.py": "import train\n"}, Target("script", "train.py"), None),
    ({"train.py": "import mpi4py\n(\n"}, Target("script", "train.py"), None),
], ids=str)  # fmt: skip
def test_the_library_that_a_program_imports(
    files: dict[str, str], target: Target, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anywhere in its file, or in a module of its own; a file that Python cannot read says nothing."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert find_import(target, LIBRARIES) == expected
