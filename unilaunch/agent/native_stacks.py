"""Read a rank's stacks with the frames of C and C++, from another process: py-spy, if it is installed."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from unilaunch.agent.loop import Loop
from unilaunch.agent.rank_process import RankProcess
from unilaunch.monitor.messages import Stack

_LARGEST = 1 << 20  # bytes of one rank's stacks


def tell_native_stacks(rank: RankProcess, loop: Loop) -> None:
    """Start py-spy on a running rank; when py-spy has ended, the rank's agent sends its output to the monitor."""
    if not rank.is_running:
        return

    def tell(text: str) -> None:
        rank.tell(rank, Stack(text, rank.progress.doing))

    program = _find()
    if program is None:
        tell("no py-spy on this host: pip install py-spy")
        return
    try:
        reading = _start([program, "dump", "--native", "--pid", str(rank.pid)])
    except OSError as error:  # the agent must live on, and its ranks with it
        tell(f"{program} cannot be started: {error.strerror}")
        return
    loop.watch(reading, _reader(reading, tell))


def _start(line: list[str]) -> int:
    """Start a program, and return the end of a pipe that has its output. The agent's loop reaps the process."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    outputs = [(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_DUP2, writing, 2)]
    try:
        os.posix_spawn(line[0], line, {"PATH": os.defpath}, file_actions=outputs)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading


def _find() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    if beside.exists():
        return str(beside)
    from shutil import which

    return which("py-spy")


def _reader(pipe: int, done: Callable[[str], None]) -> Callable[[], bool]:
    """Return a function that reads *pipe*; at the end of the pipe it calls *done* with the text and returns False."""
    text = bytearray()

    def read() -> bool:
        data = os.read(pipe, 1 << 16)
        text.extend(data[: _LARGEST - len(text)])
        if not data:
            os.close(pipe)
            done(text.decode(errors="replace"))
        return bool(data)

    return read
