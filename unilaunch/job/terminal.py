"""The input of a terminal, for rank 0: mpirun cannot read the terminal, since it runs in another session."""

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_TICK = 0.2
_PIECE = 1 << 12


def is_terminal(file: object) -> bool:
    """Return whether a caller's standard error is a terminal: it may have put any object there, or closed it."""
    with suppress(ValueError):
        return bool(getattr(file, "isatty", bool)())
    return False


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
