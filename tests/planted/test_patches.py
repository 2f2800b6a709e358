"""The planted faults are in order."""

import subprocess
from pathlib import Path

import pytest

from planted.plant import ROOT, noticed_by, patches


@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.stem)
def test_a_patch_applies_and_its_tests_exist(patch: Path) -> None:
    """A change of the lines around a fault, or of the name of a test, changes the patch too."""
    line = ["git", "apply", "--check", str(patch)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert noticed_by(patch)
    for test in noticed_by(patch):
        file, _, name = test.partition("[")[0].partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test
