"""Receive buffers in memory that all ranks of a host share: a sender writes rows where they are read.

1. Each rank makes two files in memory, without a name in any folder (memfd_create). They end with the last process
   that has them, so nothing is left behind. The ranks tell each other where they are: /proc/PID/fd/N, which Linux opens
   for processes of the same user only.
2. If every rank could open the files of every other, none sends rows any more: it writes them to the receiver's file.
   Otherwise, as on several hosts or in several containers, all ranks send messages; rows of large buffers too.
3. After it has written, a rank sends each other rank one byte. A rank that has got all bytes may read its rows.
4. The two files take turns. Who writes to a file for the second time has a byte of its reader that was sent after the
   reader had done with the first rows.
"""

import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives, Exchange

_TURNS = 2
#: Each has four descriptors of each other's files: more ranks could reach the usual limit, 1,024 of a process.
_MOST_RANKS = 16
#: Of a buffer. Files in memory have small pages, as a rule: rows that are read at random from many of them take longer
#: than those of a large private buffer, by more than a copy takes.
_MOST_BYTES = 1 << 25
#: What a rank tells the others: its kernel and its processes' namespace, its process, its files and their name.
_ADDRESS = np.dtype([("host", "S64"), ("process", "u8"), ("files", "u8", _TURNS), ("name", "S40")])


class SharedBuffers:
    """The receive buffers of all ranks, as one rank sees them.

    Args:
        collectives: The ranks' collectives.
        files: The descriptors of each rank's files. (ranks, 2)
        rank: This rank.
        sections: How many rows this rank sends to each, in which row of its buffer they begin, and how many rows are
            there. (ranks, 3)
    """

    def __init__(
        self, collectives: Collectives, files: Sequence[Sequence[int]], rank: int, sections: Sequence[Sequence[int]]
    ) -> None:
        self.collectives, self.files, self.rank, self.sections = collectives, files, rank, sections
        self.turn = 0
        self.mapped: dict[int, mmap.mmap] = {}
        others = [int(other != rank) for other in range(len(files))]
        self.bytes_to = others, np.zeros((sum(others), 1), np.uint8), np.empty((sum(others), 1), np.uint8)
        weakref.finalize(self, _close, [file for pair in files for file in pair])

    def pays(self, columns: int, dtype: Any) -> bool:
        """Return whether rows are better written here than sent; of all ranks the same."""
        return max(rows for _, _, rows in self.sections) * columns * np.dtype(dtype).itemsize <= _MOST_BYTES

    def next(self, columns: int, dtype: Any) -> tuple[NDArray[Any], list[tuple[int, NDArray[Any]]]]:
        """Return where this rank's rows will be, and each receiver with where this rank writes its rows.

        Args:
            columns: Columns of the rows.
            dtype: Their type.
        """
        self.turn = (self.turn + 1) % _TURNS
        places = [
            (rank, self._buffer(rank, columns, np.dtype(dtype))[start : start + count])
            for rank, (count, start, _) in enumerate(self.sections)
            if count
        ]
        return self._buffer(self.rank, columns, np.dtype(dtype)), places

    def written(self) -> Exchange:
        """Tell all ranks that this one has written its rows; what is returned waits until all have."""
        counts, sent, received = self.bytes_to
        return self.collectives.exchange(sent, counts, received, counts)

    def _buffer(self, rank: int, columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a rank's buffer of this turn."""
        shape = self.sections[rank][2], columns
        size = max(1, shape[0] * columns * dtype.itemsize)
        file = self.files[rank][self.turn]
        memory = self.mapped.get(file)
        if memory is None or len(memory) < size:
            os.posix_fallocate(file, 0, size)  # it grows only, whichever of the ranks comes first
            memory = self.mapped[file] = mmap.mmap(file, size)
        return np.frombuffer(memory, dtype, shape[0] * columns).reshape(shape)


def share_buffers(
    collectives: Collectives, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> SharedBuffers | None:
    """Return the buffers of all ranks; None if they do not share memory, or are one, or many. All ranks must call it.

    Args:
        collectives: The ranks' collectives.
        send_counts: How many rows this rank sends to each. (ranks,)
        receive_counts: How many rows come from each. (ranks,)
    """
    ranks = len(send_counts)
    if not 1 < ranks <= _MOST_RANKS:
        return None
    name = secrets.token_hex(16)
    own = _make_files(name)
    address = np.array([(_host(), os.getpid(), own or [0] * _TURNS, name)], _ADDRESS)
    addresses = _all_to_all(collectives, address.view(np.uint8)[None].repeat(ranks, 0)).view(_ADDRESS)[:, 0]
    starts = np.cumsum(receive_counts) - receive_counts
    places = _all_to_all(collectives, np.stack((starts, np.full(ranks, sum(receive_counts))), 1).astype(np.int64))
    files = [pair for one in addresses if (pair := _open_files(one, address[0]))] if own else []
    # Collectives over which nothing moves, as `plan` measures with, give each rank its own words back.
    lacking = np.array([len(files) != ranks or len(set(addresses["name"])) != ranks], np.float64)
    collectives.all_reduce(lacking)
    _close(own)
    if lacking[0]:
        _close([file for pair in files for file in pair])
        return None
    rank = addresses["name"].tolist().index(name.encode())
    sections = [(count, *place) for count, place in zip(send_counts, places.tolist(), strict=True)]
    return SharedBuffers(collectives, files, rank, sections)


def _make_files(name: str) -> list[int]:
    """Return this rank's files; none if the system has no files in memory, or if this process may open no more."""
    made: list[int] = []
    try:
        for _ in range(_TURNS):
            made.append(os.memfd_create(name))  # noqa: PERF401  (those before a failure are closed)
    except (AttributeError, OSError):
        _close(made)
        return []
    return made


def _host() -> bytes:
    """Return what is the same for processes that see each other in /proc; a new word where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        words = f"{boot} {Path('/proc/self/ns/pid').stat().st_ino} {os.uname().nodename}"
    except OSError:
        words = secrets.token_hex(16)
    return sha256(words.encode()).hexdigest().encode()


def _open_files(address: Any, own: Any) -> list[int]:
    """Return the descriptors of a rank's files; none if this process cannot open them."""
    if address["host"] != own["host"]:
        return []
    paths = [Path(f"/proc/{address['process']}/fd/{file}") for file in address["files"]]
    opened: list[int] = []
    try:
        if not all(address["name"].decode() in str(path.readlink()) for path in paths):
            return []
        for path in paths:
            opened.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))  # noqa: PERF401  (those before a failure are closed)
    except OSError:
        _close(opened)
        return []
    return opened


def _all_to_all(collectives: Collectives, rows: NDArray[Any]) -> NDArray[Any]:
    """Send each rank one row, and return the one that each has sent."""
    received, counts = np.zeros_like(rows), [1] * len(rows)
    collectives.exchange(rows, counts, received, counts).wait()
    return received


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
