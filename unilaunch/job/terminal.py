"""The terminal of `launch`: the job's output with a live line below it, and what the user types, for rank 0.

The live line is one line with the job's progress; only on a terminal.
"""

import os
import re
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from unilaunch.errors import NO_ROOM, one_line
from unilaunch.interfaces.step import Step
from unilaunch.monitor.inbox import RankSeen
from unilaunch.monitor.stragglers import Straggler
from unilaunch.record import Record
from unilaunch.spec.variables import NO_WINDOWS, Windows

#: Seconds between two looks at whether the input is for this process, and most bytes that are read of it at once.
_TICK, _PIECE = 0.2, 1 << 12
_PAUSE = 0.5  # least seconds between two updates of the live line
#: Numbers between these two are shown with four decimals, others with an exponent.
_PLAIN = (1e-3, 1e6)
_CLEAR = "\r\x1b[K"
#: The rule above and below a message of mpirun's, and how such messages begin that are left out.
_RULE = b"-" * 74 + b"\n"
_WHY = re.compile(
    rb"\s*(Primary job +terminated normally, but"
    rb"|\w+ (noticed that (process rank|the job aborted)|detected that one or more processes exited"
    rb"|has exited due to (process rank|a process exiting)))"
)


def is_terminal(file: object) -> bool:
    """Return whether a caller's standard error is a terminal: it may have put any object there, or closed it."""
    with suppress(ValueError):
        return bool(getattr(file, "isatty", bool)())
    return False


class Console(Record):
    """The console of a job: where its input comes from, and who shows its output.

    Attributes:
        stdin: The descriptor of rank 0's input; None: it has none.
        shown: Whether `launch` shows the output, below which it has a live line.
        windows: Of the terminals on which rank 0's output is shown, and no other rank's.
    """

    stdin: int | None
    shown: bool = False
    windows: Windows = NO_WINDOWS


def own_windows() -> Windows:
    """Return rows and columns of the terminals that this process's output and error output are."""
    return [(size.lines, size.columns) if (size := _size(number)) else None for number in (1, 2)]


def _size(descriptor: int) -> os.terminal_size | None:
    with suppress(OSError):
        return os.get_terminal_size(descriptor)
    return None


@contextmanager
def own_input(*, attended: bool, inherited: bool) -> Iterator[int | None]:
    """Yield a descriptor of what this process reads, as the input of rank 0; None if there is nothing to read.

    Args:
        attended: Whether the user waits for the job at the terminal: only then it has an input.
        inherited: Whether rank 0 can have the input of this process itself. Even then what is typed comes through a
            pipe: a terminal stops a process of another session that reads it.
    """
    if not attended or not _is_open():
        yield None
    elif inherited and not os.isatty(0):
        yield 0
    else:
        reading, writing = os.pipe()
        over = threading.Event()
        threading.Thread(target=_pass_on, args=(writing, over), daemon=True).start()
        try:
            yield reading
        finally:
            over.set()
            os.close(reading)


def _is_open() -> bool:
    """Whether something may be read; standard input may be closed, and then 0 may be another file's number by now."""
    with suppress(OSError):
        return bool(sys.stdin) and os.fstat(0).st_rdev != Path(os.devnull).stat().st_rdev
    return False


def _pass_on(target: int, over: threading.Event) -> None:
    with open(target, "wb", buffering=0) as file, suppress(OSError, ValueError):
        while not over.is_set():
            if not select.select([0], [], [], _TICK)[0]:
                continue
            if not _is_in_foreground():  # the terminal stops a background job that reads
                time.sleep(_TICK)
            elif data := os.read(0, _PIECE):
                file.write(data)
            else:
                return


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # the terminal of another session: the kernel does not stop a reader
        return True


class Live:
    """The live line, and the job's output, which is shown above it."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self.text = ""
        self.drawn = 0.0
        self.open_line = False
        self.lacks_room = False  # the output goes to a file on a full disk, which was said
        self.lock = threading.Lock()
        self.unsaid: list[str] = []  # messages that the console had no room for
        self.banner = BannerFilter()

    def follow(self, ranks: Mapping[int, RankSeen], straggler: Straggler | None) -> None:
        """Write the messages that wait; update the live line, if it is time."""
        if self.unsaid and self.lock.acquire(blocking=False):
            try:
                self._say_all(0)
            finally:
                self.lock.release()
        if not self.shown or time.monotonic() - self.drawn <= _PAUSE or not (text := describe(ranks, straggler)):
            return
        # A terminal that is stopped (Ctrl-S) takes nothing, and may hold the lock: the job goes on.
        if _poll(2, select.POLLOUT).poll(0) and self.lock.acquire(blocking=False):
            try:
                self.drawn, self.text = time.monotonic(), text[: _columns() - 1]
                if not self.open_line:  # do not split a line that a rank has begun to write
                    _write(2, _CLEAR + self.text)
            finally:
                self.lock.release()

    def say(self, line: str) -> None:
        """Write a message of `launch` above the live line.

        Where nobody reads the job's output, its writer holds the lock: then the message comes later, and the job goes
        on.
        """
        self.unsaid.append(line)
        if self.lock.acquire(timeout=_PAUSE):
            try:
                self._say_all(_PAUSE)
            finally:
                self.lock.release()

    def _say_all(self, seconds: float) -> None:
        """Write the messages that wait, if there is room for them within so many seconds."""
        while self.unsaid and _poll(2, select.POLLOUT).poll(1000 * seconds):
            self._end_line()
            _write(2, (_CLEAR if self.text else "") + f"unilaunch: {self.unsaid.pop(0)}\n")

    def _end_line(self) -> None:
        """End the line that a rank has not ended (a prompt, a progress bar): a message follows."""
        _write(2, "\n" * self.open_line)
        self.open_line = False

    @contextmanager
    def passing(self, *outputs: IO[bytes] | None, hurried: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """While the block runs, write mpirun's output above the live line; then the rest of it, unless *hurried*.

        The user hurries by a second signal: what the console does not take at once is not shown then.
        """
        targets = zip((1, 2), outputs, strict=True)
        threads = {
            threading.Thread(target=self._pass_on, args=(output, target), daemon=True): output
            for target, output in targets
            if output
        }
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread, output in threads.items():
                thread.join(_PAUSE)  # a process that outlives mpirun may still hold its output
                while thread.is_alive() and not hurried() and self._has_more(output):
                    thread.join(_PAUSE)
            if self.lock.acquire(timeout=_PAUSE):
                try:
                    if self.text and not self.open_line:
                        _write(2, _CLEAR)
                    _write(2, self.banner.held)
                    self._say_all(_PAUSE)
                    self.banner, self.text = BannerFilter(), ""
                finally:
                    self.lock.release()

    def report(self, text: str) -> None:
        """Write lines of `launch` after the job's output, unless the reader has closed its end."""
        with self.lock:
            self._end_line()
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)

    def _has_more(self, output: IO[bytes]) -> bool:
        """Return whether some of the output has not been written yet, or its end has not been read."""
        if not self.lock.acquire(timeout=_PAUSE):
            return True  # nobody reads the console now
        try:
            return bool(_poll(output, select.POLLIN).poll(0))
        finally:
            self.lock.release()

    def _pass_on(self, output: IO[bytes], target: int) -> None:
        own = os.dup(output.fileno())  # mpirun's ssh may outlive the job, and write when `output` is closed
        try:
            arriving = _poll(own, select.POLLIN)
            while arriving.poll():
                with self.lock:  # from here on the piece counts as written
                    if output.closed or not (data := os.read(own, 1 << 16)):
                        return
                    self._show(data, target)
        finally:
            os.close(own)

    def _show(self, data: bytes, target: int) -> None:
        if target == 2 and not (data := self.banner.feed(data)):  # noqa: PLR2004  (standard error)
            return
        if self.text and not self.open_line:
            _write(2, _CLEAR)
        if (fault := _write(target, data)) and not self.lacks_room:
            self.lacks_room = True
            self.unsaid.append(f"output is no longer shown: {fault}; it is still kept")
        self.open_line = not data.endswith(b"\n")
        if self.text and not self.open_line:
            _write(2, self.text)


def _poll(file: IO[bytes] | int, event: int) -> "select.poll":
    """Return what waits for an event of a file, or its end; `select.select` takes no descriptor above 1023."""
    events = select.poll()
    events.register(file, event)
    return events


def _columns() -> int:
    own = 0
    with suppress(OSError):
        own = os.get_terminal_size(2).columns  # standard output may be a file
    return shutil.get_terminal_size((own or 80, 24)).columns


def _write(target: int, data: str | bytes) -> str:
    """Write to the console. If the console is closed, the job continues; return why, if it is a file without room."""
    left = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:  # another process has made the pipe or the terminal non-blocking
            _poll(target, select.POLLOUT).poll()
        except OSError as error:
            return os.strerror(error.errno) if error.errno in NO_ROOM else ""
    return ""


def describe(ranks: Mapping[int, RankSeen], straggler: Straggler | None = None) -> str:
    """Return the progress of the ranks: the step and the numbers of the slowest rank, and which rank delays the others.

    For instance "batch 12/200, error 0.4312, slowest rank 3 on node1 (0.012 s of computing)". If the ranks report no
    steps, only a straggler is named, if there is one.
    """
    steps = {rank: step for rank, seen in ranks.items() if (step := Step.from_facts(seen.progress))}
    if not steps:
        return straggler.line if straggler else ""
    behind = min(steps.values(), key=lambda step: step.number)
    words = [f"{behind.kind} {behind.number}" + ("" if behind.total is None else f"/{behind.total}")]
    words += [f"{name} {_figure(value)}" for name, value in behind.values.items() if value is not None]
    busy = {rank: step.busy for rank, step in steps.items() if step.busy is not None}
    if straggler:
        words.append(straggler.line)
    elif len(busy) == len(steps) > 1:
        slowest = max(busy, key=busy.__getitem__)
        words.append(f"slowest rank {slowest} on {ranks[slowest].host} ({busy[slowest]:.3f} s of computing)")
    return one_line(", ".join(words))


def _figure(value: float) -> str:
    return f"{value:.4f}" if not value or _PLAIN[0] <= abs(value) < _PLAIN[1] else f"{value:.3e}"


class BannerFilter:
    """Removes mpirun's messages about the end of a job, once the monitor or the user has ended it.

    They often name a rank that is not the cause.

    mpirun writes a rule of dashes above and below each of its messages; the upper one may stand behind a rank's
    unfinished line. Other messages, and all messages before the end of the job, are shown without a delay.

    Attributes:
        active: Whether the job is being ended.
    """

    def __init__(self) -> None:
        self.active = False
        self.held = b""
        self._line_begins = True

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to show now, of *data* and of the bytes that were kept before."""
        data, self.held = self.held + data, b""
        shown = b""
        while self.active and (begin := self._find_rule(data)) >= 0:
            shown += data[:begin]
            self._line_begins = data[:begin].endswith(b"\n") if begin else self._line_begins
            end = data.find(b"\n" + _RULE, begin + len(_RULE) - 1)
            if end < 0:
                self.held = data[begin:]
                return shown
            block, data = data[begin : end + 1 + len(_RULE)], data[end + 1 + len(_RULE) :]
            shown += b"" if _WHY.match(block, len(_RULE)) else block
            self._line_begins = True
        if data:
            self._line_begins = data.endswith(b"\n")
        return shown + data

    def _find_rule(self, data: bytes) -> int:
        """Return the position of the first rule, or of a line that may become one; -1 if there is none."""
        for run in re.finditer(rb"(?<!-)-", data):
            at, after = run.start(), run.start() + len(_RULE)
            begins_line = data[at - 1 : at] == b"\n" if at else self._line_begins
            if _RULE.startswith(data[at:after]) and (begins_line or _may_be_why(data[after:])):
                return at
        return -1


def _may_be_why(text: bytes) -> bool:
    """Return whether *text*, which follows a rule, is a message about the end of a job, or may become one."""
    return bool(_WHY.match(text)) or b"\n" not in text.lstrip()
