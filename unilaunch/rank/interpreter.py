"""What a rank changes in Python's interpreter: garbage collection, and what Python does at the end of a process.

A framework creates 250,000 long-lived objects, which need not be searched for garbage. Some ranks run the steps of an
exit earlier than Python would, or end without an exit.
"""

import atexit
import gc
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_WITH_BUFFERS = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the collector inside the block, and exempt the objects that exist at its end from later collections.

    A process that imports torch or MindSpore and exits then takes two thirds of the time (`benchmarks/startup.py`),
    since the interpreter also collects when it exits. An object is still freed with its last reference, and objects
    that the program makes later are collected as usual.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def let_triton_be_collected() -> None:
    """Undo the exemption before the interpreter ends, if Triton is loaded, as MindSpore does where it is installed.

    Triton's binding (nanobind) would otherwise write 30 lines about leaked functions to standard error.
    """
    if "triton._C.libtriton" in sys.modules:
        gc.unfreeze()


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
