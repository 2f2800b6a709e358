"""What `launch` starts for an attempt."""

import os
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest

from unilaunch.errors import LauncherError
from unilaunch.job.started import GuardHandle, StartedAgent
from unilaunch.job.terminal import Console


def test_an_agent_without_files_is_an_error_at_once() -> None:
    """Without the request the guard would wait, and `launch` until --timeout."""
    guard = GuardHandle("train.py", {})
    limits, free = getrlimit(RLIMIT_NOFILE), os.dup(0)
    os.close(free)
    try:
        setrlimit(RLIMIT_NOFILE, (free, limits[1]))
        with (
            pytest.raises(LauncherError, match="Too many open files: see ulimit -n"),
            StartedAgent(guard).lending_files(Console(None, shown=True)),
        ):
            pass
    finally:
        setrlimit(RLIMIT_NOFILE, limits)
        guard.close()
