"""When the stacks of a rank are whole."""

import os
import time

from unilaunch.agent.stack_reader import StackReader


def test_a_rank_that_gets_no_processor_is_waited_for() -> None:
    """An answer without a word would say that a stalled rank stands nowhere; a stopped rank writes none."""
    reading, writing = os.pipe()
    reader = StackReader(reading)
    now = time.monotonic()
    reader.begin(stopped=False)
    assert reader.take(now + 2) is None
    os.write(writing, b'File "train.py", line 7 in loop\n')
    assert reader.hear()
    assert reader.take(time.monotonic() + 1) == 'File "train.py", line 7 in loop\n'
    assert reader.take(time.monotonic() + 9) is None
    reader.begin(stopped=True)
    assert reader.take(time.monotonic() + 1) == "stopped (SIGSTOP)"
    os.close(writing)
    os.close(reading)
