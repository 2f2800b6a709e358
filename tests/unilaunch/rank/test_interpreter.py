"""What a program registers for its end: seen, and as in plain Python."""

import atexit
import functools
import inspect
import os
import signal
import time
from collections.abc import Iterator

import pytest

from unilaunch.rank.interpreter import Registrations


@pytest.fixture
def registrations() -> Iterator[tuple[Registrations, list[int]]]:
    """Yield one that watches, and a list with an entry for each begin."""
    natives, before = (signal.signal, signal.getsignal, atexit.register), signal.getsignal(signal.SIGTERM)
    begun: list[int] = []
    (watching := Registrations(lambda: begun.append(1))).watch()
    try:
        yield watching, begun
    finally:
        signal.signal, signal.getsignal, atexit.register = natives
        signal.signal(signal.SIGTERM, before)


def test_a_handler_is_the_programs_own(registrations: tuple[Registrations, list[int]]) -> None:
    """It gets the signal and the frame, and is what getsignal and the next signal return."""
    _, begun = registrations
    seen: list[object] = []

    def handle(*given: object) -> None:
        seen.extend(given)

    signal.signal(signal.SIGTERM, handle)
    assert signal.getsignal(signal.SIGTERM) is handle
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)
    assert seen == [signal.SIGTERM, inspect.currentframe()]
    assert begun == [1]
    assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is handle
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_process_that_was_forked_is_no_rank(registrations: tuple[Registrations, list[int]]) -> None:
    _, begun = registrations
    signal.signal(signal.SIGTERM, lambda *_: os._exit(len(begun)))
    if not (child := os.fork()):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        os._exit(9)
    assert os.waitpid(child, 0)[1] == 0


def test_exit_functions_of_frameworks_save_nothing_of_the_users(registrations: tuple[Registrations, list[int]]) -> None:
    watching, _ = registrations

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
