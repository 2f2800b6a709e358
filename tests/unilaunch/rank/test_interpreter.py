"""What a program registers for its end. That it is called as in plain Python is in tests/jobs."""

import atexit
import functools
import signal

import pytest

from unilaunch.rank.interpreter import Registrations


def test_exit_functions_of_frameworks_save_nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((signal, "signal"), (signal, "getsignal"), (atexit, "register")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # the native ones come back after the test
    (watching := Registrations(lambda: None)).watch()

    def close() -> None:
        pass

    for module in ("logging", "torch.utils.data", "mpi4py.MPI"):
        close.__module__ = module
        assert atexit.register(close) is close
    assert not watching.has_exit_functions
    close.__module__ = "wandb.sdk"
    atexit.register(functools.partial(close))
    atexit.unregister(close)
    assert watching.has_exit_functions
