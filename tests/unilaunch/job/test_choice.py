"""The mpirun that is found, and the environment in which it is asked and started."""

import os
from pathlib import Path

import pytest

from unilaunch.job.choice import as_of_a_shell


def test_a_service_gets_a_home_and_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them Open MPI does not start."""
    own = {"HOME": "/a", "PATH": "/b"}
    assert as_of_a_shell(own) == own
    monkeypatch.delenv("HOME")
    assert as_of_a_shell({"A": "b"}) == {"A": "b", "HOME": str(Path("~").expanduser()), "PATH": os.defpath}
