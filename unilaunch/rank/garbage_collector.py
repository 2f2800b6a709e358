"""Switch Python's garbage collector off while a framework creates 250,000 long-lived objects."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
