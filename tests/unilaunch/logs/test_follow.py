"""The log lines of a job that still runs."""

import threading
import time
from pathlib import Path

from unilaunch.logs.follow import follow
from unilaunch.logs.layouts import Stream


def test_output_that_an_agent_writes_late_is_read(tmp_path: Path) -> None:
    """The ranks record their end themselves; their last lines come through the agent."""
    path, is_written = tmp_path / "stdout", threading.Event()
    path.write_text("first\n")

    def write_late() -> None:
        time.sleep(1.5)
        with path.open("a") as file:
            file.write("last\n")
        is_written.set()

    looks = iter([False])
    agent = threading.Thread(target=write_late)
    agent.start()
    stream = Stream(0, "stdout", path, "", 0.0, None)
    lines = [line.text for line in follow(lambda: next(looks, True), lambda: [stream], is_written.is_set) if line]
    agent.join()
    assert lines == ["first", "last"]
