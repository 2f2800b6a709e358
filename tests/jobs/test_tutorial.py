"""docs/tutorial.md, typed from top to bottom: every command ends as it should, and prints what the page shows."""

import re
import socket
import sys
from pathlib import Path

import pytest

from jobs.mpirun import finish

pytestmark = pytest.mark.system  # Cora's files beside the clone
ROOT = Path(__file__).parents[2]
CORA = ROOT.parent / "shared" / "datasets" / "planetoid"
BLOCKS = re.compile(r'^```(python|diff|console)(?: title="([^"]*)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    """The files are written and changed as the page says; Cora's lie where PyG and unilaunch keep what they fetch."""
    if not CORA.is_dir():
        pytest.skip(f"no files of Cora at {CORA}")
    for place in (tmp_path / "data" / "Cora" / "raw", tmp_path / "cache" / "planetoid"):
        place.parent.mkdir(parents=True)
        place.symlink_to(CORA)
    kinds = []
    for kind, name, text in BLOCKS.findall((ROOT / "docs" / "tutorial.md").read_text()):
        kinds.append(kind)
        if kind == "python":
            (tmp_path / name).write_text(text)
        elif kind == "diff":
            _change(tmp_path / name, text)
        else:
            _type(text, tmp_path)
    assert kinds.count("diff") == 3


def _change(file: Path, diff: str) -> None:
    """Apply a diff without line numbers; its hunks are separated by @@."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines()
        old, new = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
        text = file.read_text()
        assert text.count(old) == 1, f"{file.name} has not: {old}"
        file.write_text(text.replace(old, new))


def _type(block: str, folder: Path) -> None:
    """Run the commands of a block one after the other; each shown line is in the output, in this order."""
    environ = {
        "UNILAUNCH_DATA": str(folder / "cache"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        ended = finish(["bash", "-c", f"exec 2>&1; {path}; {line}"], folder, environ)
        assert (ended.returncode != 0) == ("failed" in shown), ended.stdout
        said = ended.stdout.replace(str(folder), "~").replace(socket.gethostname(), "vm")
        rest = iter(said.splitlines())
        assert [one for one in shown.splitlines() if one not in rest] == [], f"{line}: {said}"
