"""The terminal of `launch`, for rank 0, which cannot read it: its launcher runs in another session."""

import fcntl
import os
import select
import stat
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

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
        stdin: Rank 0's input, as subprocess.Popen takes it.
        shown: Whether `launch` shows the output, below which it has a live line.
        windows: Of the terminals on which rank 0's output is shown, and no other rank's.
    """

    stdin: int | None
    shown: bool = False
    windows: Windows = NO_WINDOWS


def own_windows() -> Windows:
    """Return rows and columns of the terminals that this process's output and error output are."""
    return [(size.lines, size.columns) if (size := _size(number)) else None for number in (1, 2)]


def waiting_input() -> int:
    """Return how many bytes of standard input are known to wait: the rest of a file, or what is in a pipe."""
    with suppress(OSError):
        kind = os.fstat(0)
        if stat.S_ISREG(kind.st_mode):
            return max(0, kind.st_size - os.lseek(0, 0, os.SEEK_CUR))
        if stat.S_ISFIFO(kind.st_mode) or stat.S_ISSOCK(kind.st_mode):
            return int.from_bytes(fcntl.ioctl(0, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def _size(descriptor: int) -> os.terminal_size | None:
    with suppress(OSError):
        return os.get_terminal_size(descriptor)
    return None


@contextmanager
def passing_input(target: IO[bytes] | None) -> Iterator[None]:
    """Pass typed text on to mpirun while the block runs; mpirun passes it to rank 0.

    Args:
        target: mpirun's standard input; None if mpirun inherits that of this process.
    """
    over = threading.Event()
    if target:
        threading.Thread(target=_pass_on, args=(target, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _pass_on(target: IO[bytes], over: threading.Event) -> None:
    with suppress(OSError, ValueError):  # the terminal is closed, or rank 0 has exited
        while not over.is_set():
            if not select.select([0], [], [], _TICK)[0]:
                continue
            if not _is_in_foreground():  # the terminal stops a background job that reads
                time.sleep(_TICK)
                continue
            if over.is_set():  # text that is typed now is for the next attempt
                return
            data = os.read(0, _PIECE)
            if not data:
                target.close()
                return
            target.write(data)


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # the terminal of another session: the kernel does not stop a reader
        return True
