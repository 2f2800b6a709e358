"""mpirun never runs on unwatched."""

import signal
import subprocess

import pytest

from unilaunch.errors import MonitorError
from unilaunch.job.mpirun_processes import killed_at_an_error


@pytest.mark.parametrize(("raised", "told"), [(KeyError("x"), MonitorError), (SystemExit(3), SystemExit)])
def test_an_unexpected_error_ends_the_job(raised: BaseException, told: type[BaseException]) -> None:
    """With one line for the user; `Popen.__exit__` alone would wait for the end of the job."""
    sleep = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with pytest.raises(told) as caught, sleep, killed_at_an_error(sleep.pid):
        raise raised
    assert sleep.returncode == -signal.SIGKILL
    assert "\n" not in str(caught.value)
    if told is MonitorError:
        assert "KeyError('x') in test_mpirun_processes.py, line" in str(caught.value)
