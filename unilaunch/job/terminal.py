"""The input of a terminal, for rank 0: mpirun cannot read it, since it runs in a session of its own."""

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_TICK = 0.2
_PIECE = 1 << 12


@contextmanager
def passing_input(target: IO[bytes] | None) -> Iterator[None]:
    """Pass on what is typed while the block runs; mpirun hands it to rank 0.

    Args:
        target: mpirun's standard input; None if it has this process's own.
    """
    over = threading.Event()
    if target:
        threading.Thread(target=_pass_on, args=(target, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _pass_on(target: IO[bytes], over: threading.Event) -> None:
    with suppress(OSError, ValueError):  # the terminal or rank 0 has gone
        while not over.is_set():
            if not select.select([0], [], [], _TICK)[0]:
                continue
            if not _is_in_foreground():  # a job in the background that reads is stopped by the terminal
                time.sleep(_TICK)
                continue
            if over.is_set():  # what is typed now is for the next start
                return
            data = os.read(0, _PIECE)
            if not data:
                target.close()
                return
            target.write(data)


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # not this session's terminal: nobody stops a reader
        return True
