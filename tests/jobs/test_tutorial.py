"""docs/tutorial.md, typed from top to bottom: every command ends as it should, and prints what the page shows."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system  # Cora's files beside the clone
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
CORA = ROOT.parent / "shared" / "datasets" / "planetoid"
BLOCKS = re.findall(r'^```(python|diff|console)(?: title="([^"]*)")?\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder, with Cora's files where PyG and unilaunch keep what they have fetched."""
    if not CORA.is_dir():
        pytest.skip(f"no files of Cora at {CORA}")
    for place in (tmp_path / "data" / "Cora" / "raw", tmp_path / "cache" / "planetoid"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(CORA)
    return tmp_path


def test_the_tutorial_does_what_it_shows(folder: Path) -> None:
    """The files are written and changed as the page says."""
    assert [kind for kind, _, _ in BLOCKS].count("diff") == 3
    for kind, name, text in BLOCKS:
        if kind == "python":
            (folder / name).write_text(text)
        elif kind == "diff":
            _change(folder / name, text)
        else:
            _type(text, folder)


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
    for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        ended = _run(line, folder)
        assert (ended.returncode != 0) == ("failed" in shown), ended.stdout
        rest = iter(_alike(ended.stdout, folder))
        missing = [one for one in _alike(shown, folder) if one not in rest]
        assert missing == [], f"{line}: {ended.stdout}"


def _run(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    variables = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # noqa: TID251
        "UNILAUNCH_DATA": str(folder / "cache"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=variables, text=True, timeout=600, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _alike(text: str, folder: Path) -> list[str]:
    """Return the lines with the page's names for this folder and this host."""
    for here, there in {str(folder): "~", socket.gethostname(): "vm"}.items():
        text = text.replace(here, there)
    return text.splitlines()
