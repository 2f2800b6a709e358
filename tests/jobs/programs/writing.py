"""Writes files of every kind, closes none, and ends as its first argument says; the second is the folder.

Further arguments are modules to import between the first file and the last one.
"""

import ctypes
import gzip
import importlib
import io
import os
import signal
import sys
import time
import zipfile
from pathlib import Path

LINE = "twenty-two characters\n"
how, root, rank = sys.argv[1], Path(sys.argv[2]).absolute(), os.environ.get("RANK", "0")  # noqa: TID251


class Text(io.TextIOWrapper):
    """A class of the program's own."""


class Writer:
    """Holds a file, and itself."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self.file, self.own = file, self


class Late:
    """Writes when it is destroyed."""

    def __init__(self) -> None:
        self.write, self.file = os.write, os.open("late", os.O_CREAT | os.O_WRONLY)

    def __del__(self) -> None:
        self.write(self.file, b"late")


def frame() -> None:
    """End, with a file that only this frame knows."""
    file = open("frame", "w")  # noqa: PTH123, SIM115
    file.write(LINE)
    if how == "raise":
        raise ValueError("broken on purpose")
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    if how in {"handled", "ordered"}:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        Path("ready").touch()
        if how == "handled":
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if how == "fork" and os.fork():
        os.wait()
        os._exit(0)


def load() -> None:
    """Import the modules; both ranks do, since MPI meets in its own."""
    for name in sys.argv[3:]:
        importlib.import_module(name)


if rank == "1":  # the other rank: it waits, or ends so that rank 0 is ordered to end
    load()
    sign = root / ("ready" if how == "ordered" else "text")
    while how in {"ordered", "left behind"}:
        time.sleep(0.2)
        if sign.exists() and (how == "ordered" or sign.stat().st_size):  # it can be ended, or it waits for this rank
            os._exit(5)
    time.sleep(60)
os.chdir(root)
text = open("text", "w")  # noqa: PTH123, SIM115
text.write(LINE)
binary = open("binary", "wb")  # noqa: PTH123, SIM115
binary.write(LINE.encode())
cycle = Writer(open("cycle", "wb"))  # noqa: PTH123, SIM115
cycle.file.write(LINE.encode())
del cycle
own = Text(open("own", "wb"))  # noqa: PTH123, SIM115
own.write(LINE)
packed = gzip.open("packed.gz", "wt")  # noqa: SIM115
packed.write(LINE)
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("a", "b")
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fputs(LINE.encode(), ctypes.c_void_p(libc.fopen(b"stdio", b"w")))
late = Late()
load()
after = open("after", "w")  # noqa: PTH123, SIM115
after.write(LINE)
frame()
