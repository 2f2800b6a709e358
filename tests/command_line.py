"""The words of a command line, as `launch` takes them, and programs that a command finds."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unilaunch.jobfiles import emit
from unilaunch.spec.options import parse


def launch_options(words: str) -> dict[str, Any]:
    """Return the options of `launch` by field, without those that say what becomes of the plan."""
    given = parse(["launch", *shlex.split(words)])
    return {field: value for field, value in given.items() if field not in {"dry_run", "json", "emit"}}


def job_file(kind: str, words: str, environ: Mapping[str, str] | None = None) -> str:
    """Return what `launch --emit KIND` writes."""
    return emit(kind, launch_options(f"--emit {kind} {words}"), {"PATH": "/bin", **(environ or {})})


def write_programs(folder: Path, **lines: str) -> str:
    """Write shell scripts of one line, by their names, and return a PATH on which they are the first."""
    for name, line in lines.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/bin:/usr/bin"


def find_mpirun(*folders: str) -> str:
    """Return the mpirun in one of the folders, or of PATH and this Python; without one the test is skipped."""
    for folder in folders or (None, str(Path(sys.executable).parent)):
        if found := shutil.which("mpirun", path=folder):
            return found
    pytest.skip("no mpirun")
