"""Signals of the user and calls of `cancel`, as a job notes them."""

import signal

import pytest

from unilaunch.job.api import Job
from unilaunch.job.attempt import Caller
from unilaunch.job.stop import UserSignals, noting_signals


def test_a_second_cancel_is_no_echo() -> None:
    """A signal that comes twice at once is one: timeout(1) sends it so."""
    signals = UserSignals()
    signals.note(signal.SIGTERM)
    signals.note(signal.SIGTERM)
    assert not signals.again
    job = Job.__new__(Job)
    job._caller = Caller(signals, attended=False)
    job.cancel()
    assert signals.again


def test_a_handler_that_python_did_not_install_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be restored, and the job's result would be lost."""
    before = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGUSR1 else before(number))
    with noting_signals(UserSignals()):
        assert before(signal.SIGUSR1) == signal.SIG_DFL
        assert before(signal.SIGTERM) != signal.SIG_DFL
