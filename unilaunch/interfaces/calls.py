"""Which collectives a rank has called: every message between ranks says which call it belongs to.

A rank's calls have numbers, 1, 2, 3, ..., and every rank must make the same ones. A message carries the *word* of its
call (`CallLog.begin`), so the rank that gets one of another call raises MixedCallsError, which names both. A rank that
waits for a message that no rank sends gets none: the newest calls also stand in memory that its agent reads, and the
monitor compares them (`unilaunch.monitor.calls`).
"""

import struct
import sys
from enum import IntEnum
from pathlib import Path
from zlib import crc32

from unilaunch.errors import MixedCallsError

#: How many of the newest calls are kept in memory.
KEPT = 64
_NUMBER = struct.Struct("@Q")  # native: written in one piece
_BEGIN = _NUMBER.size
#: Bytes of a log: the number of the newest call, then the kinds of the newest ones.
SIZE = _NUMBER.size + KEPT
#: A word has 15 bits, as many as the least tag of MPI: the number's last 8, and the kind.
_NUMBERS, _KINDS = 1 << 8, 1 << 7
#: Packages whose lines are not the user's.
_LIBRARIES = ("unilaunch", "torch", "mindspore", "numpy")


class Operation(IntEnum):
    """What a collective does."""

    ALL_REDUCE = 0
    EXCHANGE = 1
    BROADCAST = 2
    BARRIER = 3
    AGREE = 4


class Purpose(IntEnum):
    """What a collective is called for: the function that a user has called."""

    NONE = 0
    HALO = 1
    SUM_HALO = 2
    FETCH = 3
    GATHER = 4
    MEAN = 5
    SUM_RANKS = 6
    SUM_GRADIENTS = 7
    DISTRIBUTE = 8
    LOAD = 9
    ACCURACY = 10
    END = 11  # the program has ended


_NONE: Purpose = Purpose.NONE
_OPERATIONS = ("all_reduce", "an exchange of rows", "a broadcast", "barrier", "an agreement")


def kind_of(operation: Operation, purpose: Purpose = Purpose.NONE) -> int:
    """Return the kind of a call, below 128."""
    return purpose << 3 | operation


def name_kind(kind: int, *, whole: bool = False) -> str:
    """Return a kind in words: "sum_ranks"; if *whole*, with what it does: "fetch (an exchange of rows)"."""
    purpose, operation = Purpose(kind >> 3), _OPERATIONS[kind & 7]
    if purpose is Purpose.NONE:
        return operation
    name = "the end of its program" if purpose is Purpose.END else purpose.name.lower()
    return f"{name} ({operation})" if whole else name


class CallLog:
    """The collectives that this rank has called.

    Attributes:
        number: Number of the newest call.
        purpose: Why the next collective is called; NONE if it is called for itself.
    """

    def __init__(self) -> None:
        self.number: int = 0
        self.purpose: Purpose = Purpose.NONE
        self._chain = 0
        self._keep_in(memoryview(bytearray(SIZE)))

    def publish(self, memory: memoryview) -> None:
        """Keep the newest calls in *memory*, of SIZE bytes, from now on."""
        memory[:] = self._memory
        self._keep_in(memory)

    def _keep_in(self, memory: memoryview) -> None:
        self._memory, self._kinds, self._number = memory, memory[_BEGIN:], memory[:_BEGIN].cast("Q")

    def begin(self, operation: Operation) -> int:
        """Note that a collective begins, and return its word."""
        number = self.number = self.number + 1
        kind = self.purpose << 3 | operation
        self.purpose = _NONE
        place = number % KEPT
        self._kinds[place] = kind
        self._number[0] = number
        if not place:
            self._chain = self.hash()
        return number % _NUMBERS * _KINDS + kind

    def hash(self) -> int:
        """Return a hash of all calls: ranks that have made the same ones have the same hash."""
        return crc32(self._kinds, self._chain)

    def mixed_up(self, rank: int, word: int, other: int, others_word: int | None) -> MixedCallsError:
        """Return the error of this rank, which got a message of another call.

        Args:
            rank: This rank.
            word: The word of its call.
            other: The rank that the message is from.
            others_word: The word of the message; None if it is not known. Where it is *word*, the sizes differ.
        """
        kind, number = word % _KINDS, self.number - (self.number - word // _KINDS) % _NUMBERS
        place = _users_line()
        if others_word == word:
            return MixedCallsError(
                f"{name_kind(kind)} (collective {number}) got arrays of other sizes or dtypes: rank {rank}{place} and "
                f"rank {other} do not agree"
            )
        if others_word is None:
            return MixedCallsError(
                f"rank {rank} is at {name_kind(kind)} (collective {number}){place}, and another rank at another one: "
                "all ranks must call the same ones in the same order"
            )
        theirs = others_word % _KINDS
        ahead = (others_word // _KINDS - number + _NUMBERS // 2) % _NUMBERS - _NUMBERS // 2
        whole = name_kind(kind) == name_kind(theirs)
        calls = {rank: (kind, number, place), other: (theirs, number + ahead, "")}
        return MixedCallsError(mixed([(f"rank {one} is", *calls[one]) for one in sorted(calls)], whole=whole))


def mixed(calls: list[tuple[str, int, int, str]], *, whole: bool = False) -> str:
    """Return in one line that ranks are in different collectives.

    Args:
        calls: Who ("rank 1 is"), the kind and the number of the call, and where it is: " at train.py:30", or "".
        whole: Whether the operations are named too.
    """
    said = [
        f"{who} at {name_kind(kind, whole=whole)} (collective {number}){place}" for who, kind, number, place in calls
    ]
    line = f"the ranks call different collectives: {' and '.join(said)}"
    return f"{line}: all ranks must call the same ones in the same order"


def read(memory: memoryview) -> tuple[int, bytes]:
    """Return the number of the newest call in a log, and the kinds of the newest ones, the newest last.

    The rank may write meanwhile, over the older half: it is left out.
    """
    (number,) = _NUMBER.unpack_from(memory)
    ring, newest = bytes(memory[_NUMBER.size :]), number % KEPT + 1
    (later,) = _NUMBER.unpack_from(memory)
    known = min(number, KEPT // 2) if later - number < KEPT // 2 else 0
    return number, (ring[newest:] + ring[:newest])[KEPT - known :]


def _users_line() -> str:
    """Return the line of the user's program that has led here: " at train.py:30"; "" if there is none."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith(_LIBRARIES):
        frame = frame.f_back
    return f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


#: The calls of this process, which is one rank.
OWN = CallLog()
