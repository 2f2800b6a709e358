"""Python's garbage collector, switched off while objects are made that stay: a framework makes 250,000."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing inside, and do not look again at what there is at its end.

    A process that imports torch or MindSpore and ends takes two thirds of the time (`benchmarks/startup.py`), since an
    interpreter's end collects too. An object is still freed when its last reference goes, and what the program makes
    later is collected as ever.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
