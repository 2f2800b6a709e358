"""Read the log lines of a job: those that exist, or also those that are written later."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from unilaunch.look.logs.layouts import Stream
from unilaunch.look.logs.lines import LogLine, Reader
from unilaunch.look.logs.merging import merge

_PAUSE = 0.2  # seconds between two reads
_DRAIN = 0.5  # seconds in which the last output arrives, after a rank has recorded its end
_LATEST = 10.0  # the same, while an agent still works on the output


def read(streams: Iterable[Stream], since: float = 0.0) -> Iterator[LogLine]:
    """Return the log lines in all files, in the order of time.

    Args:
        streams: The files.
        since: A file that was last written before this moment is not opened. Seconds since 1970.
    """
    readers = []
    for stream in streams:
        with suppress(FileNotFoundError):  # a new run has moved it aside since it was found
            file = stream.path.stat()
            if file.st_size and file.st_mtime >= since:
                readers.append(Reader(stream))
    yield from merge(reader.lines() for reader in readers)
    for reader in readers:
        reader.close()


def follow(
    has_ended: Callable[[], bool], find: Callable[[], list[Stream]], is_written: Callable[[], bool] = lambda: True
) -> Iterator[LogLine | None]:
    """Return the log lines until the job has ended, also of ranks that begin later; None at each pause.

    Args:
        has_ended: Returns whether the job has ended.
        find: Returns the streams that exist by now.
        is_written: Returns whether nobody will write into them any more, once the job has ended.
    """
    readers: dict[tuple[Path, int], Reader] = {}
    has_paused = False
    while not has_ended():
        yield from _new_lines(readers, find())
        yield None
        with suppress(AttributeError, ValueError):  # a caller may have closed it
            sys.stdout.flush()
        time.sleep(_PAUSE)
        has_paused = True
    if has_paused:
        time.sleep(_DRAIN)
        until = time.monotonic() + _LATEST
        while not is_written() and time.monotonic() < until:
            time.sleep(_PAUSE)
    yield from _new_lines(readers, find(), whole=True)
    for reader in readers.values():
        reader.close()


def _new_lines(
    readers: dict[tuple[Path, int], Reader], streams: list[Stream], *, whole: bool = False
) -> Iterator[LogLine]:
    found = {key: stream for stream in streams if (key := _identity(stream.path))}
    gone = {key: readers.pop(key) for key in set(readers) - set(found)}
    for key, stream in found.items():
        with suppress(FileNotFoundError):  # a new run has moved it aside since it was found
            readers[key] = readers.get(key) or Reader(stream)
            readers[key].stream = stream  # the host becomes known later
    # A file that a new run has moved aside is read to its end; Open MPI's copy of a stream that is ours too is not.
    rests = [reader.lines() for key, reader in gone.items() if _identity(key[0]) != key]
    yield from merge([*rests, *(reader.lines(whole=whole) for reader in readers.values())])
    for reader in gone.values():
        reader.close()


def _identity(path: Path) -> tuple[Path, int] | None:
    """Return an identity that differs for a later file of the same name; None if there is no such file."""
    try:
        return path, path.stat().st_ino
    except OSError:
        return None
