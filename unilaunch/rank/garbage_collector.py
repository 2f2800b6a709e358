"""Switch Python's garbage collector off while a framework creates 250,000 long-lived objects."""

import gc
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
