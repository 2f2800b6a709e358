"""When the stacks of a rank are whole, and who is asked for them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unilaunch.agent import stack_reader
from unilaunch.agent.channel import STACKS
from unilaunch.agent.processes import catches, state
from unilaunch.agent.stack_reader import StackReader

RANK = f"import faulthandler, time; faulthandler.register({STACKS}); time.sleep(60)"


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


def _await(process: "subprocess.Popen[bytes]", states: str, *, handler: bool) -> None:
    until = time.monotonic() + 30
    while state(process.pid) not in states or catches(process.pid, STACKS) != handler:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_rank_that_gets_no_processor_is_waited_for() -> None:
    """An answer without a word would say that a stalled rank stands nowhere; a stopped rank writes none."""
    with _process(sys.executable, "-c", RANK) as (process, reader):
        _await(process, "RS", handler=True)
        now = time.monotonic()
        reader.begin(process.pid)
        assert reader.take(now + 2) is None
        while b"in <module>" not in reader.text:
            assert reader.hear()
        assert 'File "<string>", line 1 in <module>' in (reader.take(time.monotonic() + 1) or "")
        assert reader.take(time.monotonic() + 9) is None
        process.send_signal(signal.SIGSTOP)
        _await(process, "T", handler=True)
        reader.begin(process.pid)
        assert reader.take(time.monotonic() + 1) == "stopped (SIGSTOP)"


def test_a_process_without_a_handler_is_not_killed() -> None:
    """A rank that has become another program, or whose Python has ended and whose libraries still clean up."""
    with _process("sleep", "60") as (process, reader):
        _await(process, "S", handler=False)
        reader.begin(process.pid)
        assert (reader.take(time.monotonic() + 1) or "").startswith("no Python stack: ")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


def test_a_rank_that_does_not_answer_is_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a disk that does not answer, say; its place was an empty text."""
    monkeypatch.setattr(stack_reader, "_BEGUN", 0.5)
    blocked = RANK.replace("time.sleep", f"import signal; signal.pthread_sigmask(0, [{STACKS}]); time.sleep")
    with _process(sys.executable, "-c", blocked) as (process, reader):
        _await(process, "S", handler=True)
        reader.begin(process.pid)
        assert reader.take(time.monotonic() + 1) == "no answer in 0.5 s (process state S)"
