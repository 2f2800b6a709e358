"""The planted faults are in order: each patch still applies."""

import subprocess
from pathlib import Path

import pytest

from planted.plant import ROOT, SOURCES, Fault, copy_tree, make_python, read_faults

FAULTS = read_faults()

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=[fault.path.stem for fault in FAULTS])


@each_fault
def test_a_patch_applies(fault: Fault) -> None:
    """The patches fit the current tree: a change of the lines around a fault changes its patch too."""
    done = subprocess.run(
        ["git", "apply", "--check", str(fault.path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@each_fault
def test_a_fault_is_small_and_explained(fault: Fault) -> None:
    """It changes one to five lines of one file, and begins with a sentence that says what is wrong."""
    head, _, diff = fault.path.read_text(encoding="utf-8").partition("\n--- a/")
    lines = diff.splitlines()
    removed = sum(line.startswith("-") for line in lines)
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    assert 1 <= max(removed, added) <= 5
    assert sum(line.startswith("+++") for line in lines) == 1
    assert head[0].isalpha()
    assert head.partition("\n\nNoticed by: ")[0].endswith(".")


@each_fault
def test_the_tests_that_should_notice_it_exist(fault: Fault) -> None:
    """Each is a test file, or a test function in it."""
    assert fault.tests
    for test in fault.tests:
        file, _, function = test.partition("::")
        name = function.partition("[")[0]
        assert Path(file).name.startswith("test_")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, test


def test_a_copy_is_what_its_processes_import(tmp_path: Path) -> None:
    """Not the tree that it was made from, whether or not a test sets PYTHONPATH for the processes that it starts."""
    copy = tmp_path / "copy"
    copy_tree(copy)
    python = make_python(tmp_path / "venv", copy)
    look = "import unilaunch, unilaunch_torch, unilaunch_gcn as gcn; print(unilaunch.__file__, gcn.__file__)"
    for path in ("", str(tmp_path), ":".join(str(copy / source) for source in SOURCES)):
        seen = subprocess.run(
            [python, "-c", look], cwd=tmp_path, env={"PYTHONPATH": path}, check=True, capture_output=True, text=True
        ).stdout.split()
        assert len(seen) == 2
        assert all(Path(file).is_relative_to(copy) for file in seen)
