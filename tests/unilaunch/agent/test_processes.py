"""What a supervising process does to others. What a rank answers that is stopped, or stuck, is in the fault matrix."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from unilaunch.agent.channel import STACKS
from unilaunch.agent.processes import catches, kill_children, state
from unilaunch.agent.stack_reader import StackReader


@contextmanager
def _process(*line: str) -> Iterator[tuple["subprocess.Popen[bytes]", StackReader]]:
    """Run a process, and give the reader of what it writes."""
    reading, writing = os.pipe()
    with subprocess.Popen(line, stderr=writing) as process:
        os.close(writing)
        try:
            yield process, StackReader(reading)
        finally:
            process.kill()
            os.close(reading)


def test_a_process_without_a_handler_is_not_killed() -> None:
    """A rank that has become another program, or whose Python has ended and whose libraries still clean up."""
    with _process("sleep", "60") as (process, reader):
        until = time.monotonic() + 30
        while state(process.pid) != "S" or catches(process.pid, STACKS):
            assert time.monotonic() < until
            time.sleep(0.01)
        reader.begin(process.pid)
        assert (reader.take(time.monotonic() + 1) or "").startswith("no Python stack: ")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_child_of_another_user_is_left_alone() -> None:
    """As one that has become another by a setuid program: it ends no agent."""
    if not (agent := os.fork()):
        if not os.fork():
            time.sleep(3)
            os._exit(0)
        kill_children(group=-1)  # none, but its modules are loaded: the other user may not read them
        os.setuid(65534)
        with suppress(BaseException):
            kill_children()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(agent, 0)[1] == 0
