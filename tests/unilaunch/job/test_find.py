"""The mpirun that is found, and the environment in which it is asked and started."""

from pathlib import Path

import pytest

from unilaunch.job.find import _below_a_prefix, with_home


def test_a_program_in_bin_has_a_prefix() -> None:
    """Open MPI 4 refuses / as one; another folder stays as it is written."""
    assert _below_a_prefix(Path("/bin/mpirun")) == Path("/bin").resolve() / "mpirun"
    assert _below_a_prefix(Path("/opt/mpi/bin/mpirun")) == Path("/opt/mpi/bin/mpirun")


def test_a_service_gets_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 5 does not start without it."""
    assert with_home({"HOME": "/a"}) == {"HOME": "/a"}
    monkeypatch.delenv("HOME")
    assert with_home({"A": "b"}) == {"A": "b", "HOME": str(Path("~").expanduser())}
