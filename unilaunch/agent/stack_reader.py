"""Read the stacks of a rank: those that it writes into a pipe to its agent, and those that py-spy writes.

A rank writes them at a signal that asks for it, or at a crash. py-spy, if it is installed, writes the frames of C and
C++ too.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from unilaunch.agent.channel import STACKS
from unilaunch.agent.processes import Loop, catches, state
from unilaunch.monitor.stacks import without_launcher

NEVER = float("inf")
#: Seconds in which a rank begins to write: it writes as soon as it gets a CPU.
_BEGUN = 4.0
#: Seconds without new text after which the stacks are complete.
_WRITTEN = 0.3
#: How faulthandler's text on a crash begins.
_CRASH = b"Fatal Python error: "
_LARGEST = 1 << 20  # bytes of one rank's stacks from py-spy


class StackReader:
    """Reads a rank's stacks.

    Attributes:
        due: When the text is complete, in seconds of `time.monotonic`; NEVER if the stacks were not requested.
    """

    def __init__(self, pipe: int) -> None:
        self.pipe, self.pid = pipe, 0
        self.text = b""
        self.due = NEVER
        self.heard = 0.0

    def begin(self, pid: int) -> None:
        """Let the rank, process *pid*, write its stacks. If it cannot, a line says why: the signal would kill it."""
        self.pid, self.text = pid, b""
        if state(pid) in {"T", "t"}:
            self.text = b"stopped (SIGSTOP)"
        elif not catches(pid, STACKS):
            self.text = b"no Python stack: it is starting or exiting, or has become another program"
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, STACKS)
        self.due = time.monotonic() + (_WRITTEN if self.text else _BEGUN)

    def hear(self) -> bool:
        """Read what the rank writes; False at the end of the pipe."""
        data = os.read(self.pipe, 1 << 16)
        self.text += data
        self.heard = time.monotonic()
        self.due = self.heard + _WRITTEN if data and self.due < NEVER else self.due
        return bool(data)

    def take_crash(self, now: float) -> str:
        """Return the stack of a crash of the rank, or of a process that it has forked, once it is complete; else ""."""
        begin = self.text.find(_CRASH)
        if begin < 0 or now <= self.heard + _WRITTEN:
            return ""
        self.text, crash = self.text[:begin], self.text[begin:]
        return without_launcher(crash.decode(errors="replace"))

    def take_last_crash(self) -> str:
        """Return the same of a rank that has exited; a process that it has started may keep the pipe open."""
        os.set_blocking(self.pipe, False)
        with suppress(BlockingIOError):
            while self.hear():
                pass
        return self.take_crash(NEVER)

    def take(self, now: float) -> str | None:
        """Return the stacks once, when they are complete; None at any other time."""
        if now <= self.due:
            return None
        self.due = NEVER
        silent = f"no answer in {_BEGUN:g} s (process state {state(self.pid) or 'ended'})"
        return self.text.decode(errors="replace") or silent


def read_native(pid: int, loop: Loop, tell: Callable[[str], None]) -> None:
    """Start py-spy on the process *pid*; when py-spy has ended, *tell* is called with its output."""
    program = _find()
    if program is None:
        tell("no py-spy on this host: pip install py-spy")
        return
    try:
        reading = _start([program, "dump", "--native", "--pid", str(pid)])
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
