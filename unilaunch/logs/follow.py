"""The lines of a job that runs, as they come."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from unilaunch.logs.ending import have_ended
from unilaunch.logs.layouts import Stream
from unilaunch.logs.lines import Line, Reader
from unilaunch.logs.story import merge

_PAUSE = 0.2  # seconds between two looks
_DRAIN = 0.5  # seconds in which the last words come, after a rank has said that it ends


def follow(folder: Path, find: Callable[[], list[Stream]]) -> Iterator[Line | None]:
    """Return what is there and what comes, also of ranks that begin later, until the job has ended; None at each pause.

    Args:
        folder: The job's.
        find: Returns the streams that there are by now.
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
) -> Iterator[Line]:
    found = {key: stream for stream in streams if (key := _identity(stream.path))}
    gone = {key: readers.pop(key) for key in set(readers) - set(found)}
    for key, stream in found.items():
        if key not in readers:
            readers[key] = Reader(stream)
        readers[key].stream = stream  # its host is known only after a while
    # What a new run has moved aside is read to its end; Open MPI's copy of what has turned out to be ours too is not.
    rests = [reader.lines() for key, reader in gone.items() if _identity(key[0]) != key]
    yield from merge([*rests, *(reader.lines(whole=whole) for reader in readers.values())])
    for reader in gone.values():
        reader.close()


def _identity(path: Path) -> tuple[Path, int] | None:
    """Return what tells a file from another one that gets its name; None if there is none."""
    try:
        return path, path.stat().st_ino
    except OSError:
        return None
