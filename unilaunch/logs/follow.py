"""The log lines of a running job, as they come."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from unilaunch.logs.ending import have_ended
from unilaunch.logs.layouts import Stream
from unilaunch.logs.lines import LogLine, Reader
from unilaunch.logs.merging import merge

_PAUSE = 0.2  # seconds between two reads
_DRAIN = 0.5  # seconds in which the last output arrives, after a rank has recorded its end


def follow(folder: Path, find: Callable[[], list[Stream]]) -> Iterator[LogLine | None]:
    """Return the log lines until the job has ended, also of ranks that begin later; None at each pause.

    Args:
        folder: The job's output folder.
        find: Returns the streams that exist by now.
    """
    readers: dict[tuple[Path, int], Reader] = {}
    has_paused = False
    while not have_ended(folder):
        yield from _new_lines(readers, find())
        yield None
        sys.stdout.flush()
        time.sleep(_PAUSE)
        has_paused = True
    if has_paused:
        time.sleep(_DRAIN)
    yield from _new_lines(readers, find(), whole=True)
    for reader in readers.values():
        reader.close()


def _new_lines(
    readers: dict[tuple[Path, int], Reader], streams: list[Stream], *, whole: bool = False
) -> Iterator[LogLine]:
    found = {key: stream for stream in streams if (key := _identity(stream.path))}
    gone = {key: readers.pop(key) for key in set(readers) - set(found)}
    for key, stream in found.items():
        if key not in readers:
            readers[key] = Reader(stream)
        readers[key].stream = stream  # its host becomes known later
    # A file that a new run has moved aside is read to its end; Open MPI's copy of a stream that is ours too is not.
    rests = [reader.lines() for key, reader in gone.items() if _identity(key[0]) != key]
    yield from merge([*rests, *(reader.lines(whole=whole) for reader in readers.values())])
    for reader in gone.values():
        reader.close()


def _identity(path: Path) -> tuple[Path, int] | None:
    """Return what tells a file from a later one of the same name; None if there is no such file."""
    try:
        return path, path.stat().st_ino
    except OSError:
        return None
