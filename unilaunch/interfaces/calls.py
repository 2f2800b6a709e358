"""Which collectives a rank has called: every message between ranks says which call it belongs to.

A rank's calls have numbers, 1, 2, 3, ..., and every rank must make the same ones. A message carries the *word* of its
call (`CallLog.begin`), so the rank that gets one of another call raises MixedCallsError, which names both. A rank that
waits for a message that no rank sends gets none: the newest calls also stand in memory that its agent reads, and the
monitor compares them (`unilaunch.monitor.monitor`).
"""

import struct
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import ClassVar
from zlib import crc32

from unilaunch.errors import MixedCallsError
from unilaunch.json_value import JsonValue

#: How many of the newest calls are kept in memory.
KEPT = 128
_NUMBER = struct.Struct("@Q")  # native: written in one piece
_BEGIN = _NUMBER.size
#: Bytes of the names of purposes.
_NAMES = 256
#: Bytes of a log: the number of the newest call, the kinds of the newest ones, and the names of purposes from 2 on.
SIZE = _NUMBER.size + KEPT + _NAMES
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


#: The purpose of a collective that is called for itself, and of the one in which ranks meet at the end of the program.
NONE, END = 0, 1
_OPERATIONS = ("all_reduce", "an exchange of rows", "a broadcast", "barrier", "an agreement")


def name_kind(kind: int, names: Sequence[str], *, whole: bool = False) -> str:
    """Return a kind in words: "sum_ranks"; if *whole*, with what it does: "fetch (an exchange of rows)".

    Args:
        kind: The kind.
        names: The names of the purposes from 2 on.
        whole: Whether the operation is named too.
    """
    purpose, operation = kind >> 3, dict(enumerate(_OPERATIONS)).get(kind & 7, "another collective")
    if purpose == NONE:
        return operation
    named = dict(enumerate(names, END + 1)) | {END: "the end of its program"}
    name = named.get(purpose, "a collective")
    return f"{name} ({operation})" if whole else name


class CallLog:
    """The collectives that this rank has called.

    Attributes:
        number: Number of the newest call.
        purpose: Why the next collective is called; NONE if it is called for itself.
    """

    #: The names of the purposes from 2 on, of this process: the functions of a library that a user calls.
    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.number: int = 0
        self.purpose: int = NONE
        self._chain = 0
        self._keep_in(memoryview(bytearray(SIZE)))

    def publish(self, memory: memoryview) -> None:
        """Keep the newest calls in *memory*, of SIZE bytes, from now on."""
        memory[:] = self._memory
        self._keep_in(memory)

    def _keep_in(self, memory: memoryview) -> None:
        self._memory, self._kinds, self._number = memory, memory[_BEGIN:-_NAMES], memory[:_BEGIN].cast("Q")
        self._write_names()

    @classmethod
    def name_purposes(cls, names: Iterable[str]) -> None:
        """Let a library say what its purposes, from 2 on, are called: fewer than 14 short names."""
        cls.names = tuple(names)
        OWN._write_names()

    def _write_names(self) -> None:
        text = ",".join(self.names).encode()
        self._memory[-_NAMES : len(text) - _NAMES] = text

    def begin(self, operation: Operation) -> int:
        """Note that a collective begins, and return its word."""
        number = self.number = self.number + 1
        kind = self.purpose << 3 | operation
        self.purpose = NONE
        place = number % KEPT
        self._kinds[place] = kind
        self._number[0] = number
        if not place:
            self._chain = self.hash()
        return number % _NUMBERS * _KINDS + kind

    def hash(self) -> int:
        """Return a hash of all calls: ranks that have made the same ones have the same hash."""
        return crc32(self._kinds, self._chain)

    def agreed(self, rank: int, word: int, answers: Sequence[JsonValue]) -> list[JsonValue]:
        """Return the values of an agreement, each of which came as [word, value].

        Raises:
            MixedCallsError: A rank has sent that of another call.
        """
        values = []
        for other, answer in enumerate(answers):
            match answer:
                case [int(theirs), value] if theirs == word:
                    values.append(value)
                case [int(theirs), _]:
                    raise self.mixed_up(rank, word, other, theirs % (_NUMBERS * _KINDS))
                case _:
                    raise self.mixed_up(rank, word, other, None)
        return values

    def mixed_up(self, rank: int, word: int, other: int, others_word: int | None) -> MixedCallsError:
        """Return the error of this rank, which got a message of another call.

        Args:
            rank: This rank.
            word: The word of its call.
            other: The rank that the message is from.
            others_word: The word of the message; None if it is not known. Where it is *word*, the sizes differ.
        """
        kind, number = word % _KINDS, self.number - (self.number - word // _KINDS) % _NUMBERS
        place, name = _users_line(), name_kind(kind, self.names)
        if others_word == word:
            return MixedCallsError(
                f"{name} (collective {number}) got arrays of other sizes or dtypes: rank {rank}{place} and "
                f"rank {other} do not agree"
            )
        if others_word is None:
            return MixedCallsError(
                f"rank {rank} is at {name} (collective {number}){place}, and another rank at another one: "
                "all ranks must call the same ones in the same order"
            )
        theirs = others_word % _KINDS
        ahead = (others_word // _KINDS - number + _NUMBERS // 2) % _NUMBERS - _NUMBERS // 2
        whole = name == name_kind(theirs, self.names)
        calls = {rank: (kind, number, place), other: (theirs, number + ahead, "")}
        return MixedCallsError(
            mixed([(f"rank {one} is", *calls[one]) for one in sorted(calls)], self.names, whole=whole)
        )


def mixed(calls: list[tuple[str, int, int, str]], names: Sequence[str], *, whole: bool = False) -> str:
    """Return in one line that ranks are in different collectives.

    Args:
        calls: Who ("rank 1 is"), the kind and the number of the call, and where it is: " at train.py:30", or "".
        names: The names of the purposes from 2 on.
        whole: Whether the operations are named too.
    """
    said = [
        f"{who} at {name_kind(kind, names, whole=whole)} (collective {number}){place}"
        for who, kind, number, place in calls
    ]
    line = f"the ranks call different collectives: {' and '.join(said)}"
    return f"{line}: all ranks must call the same ones in the same order"


def read(memory: memoryview) -> tuple[int, bytes, str]:
    """Return the number of the newest call in a log, the kinds of the newest ones, the newest last, and the names.

    The rank may write meanwhile, over the older half: it is left out.
    """
    (number,) = _NUMBER.unpack_from(memory)
    ring, newest = bytes(memory[_NUMBER.size : -_NAMES]), number % KEPT + 1
    (later,) = _NUMBER.unpack_from(memory)
    known = min(number, KEPT // 2) if later - number < KEPT // 2 else 0
    names = bytes(memory[-_NAMES:]).rstrip(b"\0").decode()
    return number, (ring[newest:] + ring[:newest])[KEPT - known :], names


def _users_line() -> str:
    """Return the line of the user's program that has led here: " at train.py:30"; "" if there is none."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith(_LIBRARIES):
        frame = frame.f_back
    return f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


#: The calls of this process, which is one rank.
OWN = CallLog()
