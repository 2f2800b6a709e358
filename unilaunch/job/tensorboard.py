"""Write a model's curves for TensorBoard: the numbers of each step that rank 0 records, with tensorboardX."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from unilaunch.errors import OutputError, PluginError
from unilaunch.report_layout import ReportLayout

_EVERY = 2.0  # seconds between two readings of rank 0's records
_LAST = 10.0  # seconds for the last rows: a writer whose disk is full blocks forever


@contextmanager
def writing(folder: Path, find: Callable[[], Path | None], layout: ReportLayout) -> Iterator[None]:
    """Write rank 0's records into *folder* while the block runs, and the rest at its end.

    Args:
        folder: The folder for `tensorboard --logdir`.
        find: Returns rank 0's folder; None while there is none. Called in another thread.
        layout: The name of a step, and the file with its numbers, in addition to `events.jsonl`.

    Raises:
        PluginError: tensorboardX is not installed.
        OutputError: The folder cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise PluginError(f"--tensorboard {folder}: {error}: pip install 'unilaunch[tensorboard]'") from None
    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise OutputError(f"--tensorboard {folder}: {error.strerror}: choose a folder that can be written") from None
    ended = Event()
    thread = Thread(target=_follow, args=(writer, find, layout, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST)
        with suppress(OSError):  # tensorboardX's own thread has ended where its disk was full
            if not thread.is_alive():
                writer.close()


def _follow(writer: Any, find: Callable[[], Path | None], layout: ReportLayout, ended: Event) -> None:
    read = dict.fromkeys(filter(None, ("events.jsonl", layout.series)), 0)
    is_last = False
    while not is_last:
        is_last = ended.wait(_EVERY)
        for name, begin in read.items():
            with suppress(OSError):  # the file does not exist yet
                if folder := find():
                    read[name] = begin + _write_rows(writer, folder / name, begin, layout.step)


def _write_rows(writer: Any, path: Path, begin: int, step: str) -> int:
    """Write the numbers of each new line that belongs to a step; return the bytes of the new lines."""
    with path.open("rb") as file:
        file.seek(begin)
        new, _, _ = file.read().rpartition(b"\n")  # the last line may be incomplete
    for line in new.splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            for name in row.keys() - {step, "time"} if isinstance(row, dict) and type(row.get(step)) is int else ():
                if isinstance(row[name], int | float):
                    writer.add_scalar(name, row[name], row[step], walltime=row.get("time"))
    return len(new) + 1 if new else 0
