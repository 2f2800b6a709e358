"""What Python does at the end of a process, for ranks that need it earlier or that end without it."""

import atexit
import gc
import io
import sys
import threading
from contextlib import suppress

_WITH_BUFFERS = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


def run_exit_functions() -> None:
    """Wait for the program's threads, then run its exit functions; a second call does nothing."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  (there is no public name)
    atexit._run_exitfuncs()  # noqa: SLF001  (nor here)


def flush_files() -> None:
    """Flush standard output, standard error, and every file that the program has not closed."""
    files = [one for one in gc.get_objects() if type(one) in _WITH_BUFFERS]
    for file in (sys.stdout, sys.stderr, *files):
        with suppress(Exception):  # None, closed, a full disk, or an object of the program's
            file.flush()
