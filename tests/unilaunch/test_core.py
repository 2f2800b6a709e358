"""No module of the core hides one of Python's."""

import sys
from pathlib import Path

import unilaunch

CORE = Path(unilaunch.__file__).parent


def test_no_module_hides_one_of_pythons() -> None:
    """`python unilaunch/__main__.py`, as msrun runs it, looks for every module in this folder first."""
    assert not {path.stem for path in CORE.iterdir()} & sys.stdlib_module_names
