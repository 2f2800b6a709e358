"""Writes files of every kind, closes none, and ends: writing.py HOW FOLDER [MODULE that is imported in between]..."""

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
from typing import Any

LINE = "twenty-two characters\n"
how, root, rank = sys.argv[1], Path(sys.argv[2]).absolute(), os.environ.get("RANK", "0")


def frame() -> None:
    """End, with a file that only this frame knows."""
    file = open("frame", "w")  # noqa: PTH123, SIM115
    file.write(LINE)
    match how:
        case "raise":
            raise ValueError("broken on purpose")
        case "exit":
            sys.exit(3)
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        case "handled" | "ordered":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
            Path("ready").touch()
            if how == "handled":
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        case "fork":
            if os.fork():
                os.wait()
                os._exit(0)


def load() -> None:
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
text, binary = open("text", "w"), open("binary", "wb")  # noqa: PTH123, SIM115
text.write(LINE)
binary.write(LINE.encode())
packed = gzip.open("packed.gz", "wt")  # noqa: SIM115
packed.write(LINE)
held: list[Any] = [open("cycle", "w")]  # noqa: PTH123, SIM115
held[0].write(LINE)
held.append(held)
del held
own = type("Text", (io.TextIOWrapper,), {})(open("own", "wb"))  # noqa: PTH123, SIM115
own.write(LINE)
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("a", "b")
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fputs(LINE.encode(), ctypes.c_void_p(libc.fopen(b"stdio", b"w")))
load()
after = open("after", "w")  # noqa: PTH123, SIM115
after.write(LINE)
frame()
