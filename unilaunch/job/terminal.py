"""The console of `launch`, for rank 0: what it reads, and the terminal, which another session cannot read."""

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unilaunch.launchers.direct import NO_WINDOWS, Windows
from unilaunch.record import Record

_TICK = 0.2
_PIECE = 1 << 12


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
