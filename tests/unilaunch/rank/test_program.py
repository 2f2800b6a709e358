"""What a program returns, how it ends, and what it registers for its end: called as in plain Python in tests/jobs."""

import atexit
import functools
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from full_disk import refusal_without_space
from unilaunch.errors import SpecError
from unilaunch.rank.interpreter import Registrations
from unilaunch.rank.program import check_value, exit_code, keep_value


def test_a_value_that_is_too_large_is_refused_in_one_line() -> None:
    """It would not come back; before, the job ended 75 s later with 137."""
    with pytest.raises(SpecError, match=r"make returned 70 MB: at most 67 MB come back"):
        check_value("x" * 70_000_000, "make")


@pytest.mark.parametrize("value", [{1, 2}, object(), {(1, 2): 3}, {1: 2, "1": 3}, [(loop := []), loop.append(loop)]])  # type: ignore[var-annotated, func-returns-value]
def test_what_cannot_be_sent_is_refused_in_one_line(value: object, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"make returned a value that cannot be sent \(.*\): expected numbers"):
        keep_value(value, "make", tmp_path)


def test_an_array_that_finds_no_space_is_named(tmp_path: Path) -> None:
    """Its file and the reason; numpy's own error has neither."""
    refused = refusal_without_space(lambda: keep_value(np.zeros(8192), "make", tmp_path), 4096)
    assert re.search(r"value\.0\.npy: make returned an array that cannot be written: .*8192", refused)


@pytest.mark.parametrize("code", [None, 0, True, -1, 256, 1 << 70, -(1 << 63) - 1, "words", 3.5])
def test_a_program_has_the_exit_code_that_python_gives_it(code: object) -> None:
    """Also where it is no number of 8 bits: the sum of many errors is no success."""
    plain = subprocess.run(
        [sys.executable, "-S", "-c", f"raise SystemExit({code!r})"], check=False, capture_output=True
    )
    assert exit_code(SystemExit(code)) == plain.returncode


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
