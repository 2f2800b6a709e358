"""The messages between ranks, agents and the monitor: a closed list, checked when they arrive.

On the wire a message is one line of JSON: [rank, name, {field: value}]. Orders and meetings have the attempt in place
of the rank: how often the job was started before. The version of the protocol is part of the handshake
(`unilaunch.machine.connections`). Nothing that arrives is executed.
"""

import json
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from unilaunch.folder.failure import Failure
from unilaunch.json_value import JsonValue
from unilaunch.record import Record

#: Bytes of one message.
LARGEST = 1 << 26
#: The rank of a message that belongs to no rank.
NO_RANK = -1


class BadMessageError(ValueError):
    """The bytes that arrived are not a valid message."""


class Shown(StrEnum):
    """How the console shows a rank's output.

    Not at all; in whole lines beside other ranks' lines; the same with the rank before each line; or alone.
    """

    NOTHING = "nothing"
    LINES = "lines"
    LABELLED = "labelled"
    ALL = "all"


# From a rank. Its agent passes them on to the monitor, unless the docstring says otherwise.


class Named(Record):
    """The rank's number is known; attempt: how often the job was started before. The first message of a rank."""

    rank: int
    host: str
    attempt: int = 0


class Placed(Record):
    """All ranks have agreed on their identity and the output folder; a program may have signal handlers."""

    host: str
    device: str
    run: str
    folder: str
    shown: Shown
    abort: bool
    has_handlers: bool = True


class MonitorAt(Record):
    """Where the monitor listens. The agent keeps this message."""

    where: str


class BeMonitor(Record):
    """Rank 0's agent must run the monitor, on the listening socket that is sent with this message."""

    secret: str
    size: int
    several: bool
    host_timeout: float
    stall_timeout: float | None
    abort: bool
    metrics: int | None
    metrics_address: str


class HoldLock(Record):
    """The agent must keep the file open that is sent with this message: its lock holds the output folder."""


class Failed(Record):
    """The rank fails; log: the text on that for its log, when the verdict shows the failure instead of the rank."""

    failure: Failure
    log: str = ""


class Returned(Record):
    """The value of a function, or the result of a model; both are JSON."""

    value: JsonValue = None
    result: dict[str, JsonValue] | None = None


class Done(Record):
    """The program has ended; leaving: the rank no longer waits for other ranks."""

    leaving: bool = False


class Saving(Record):
    """The rank uses the time that it has to end: a handler of its program has begun, or its exit functions run."""


# From an agent to the monitor.


class Progress(Record):
    """What the rank is doing, and how many seconds ago that changed; its pace (`Pace`), and its memory in bytes.

    waiting: It waits for other ranks in a collective.
    calls: Number of the newest collective that it has called.
    kinds: The kinds of the newest ones, the newest last, in hexadecimal digits.
    purposes: The names of the purposes of collectives, with commas between them.
    """

    facts: dict[str, JsonValue]
    age: float
    steps: int = 0
    busy: float = 0.0
    received: int = 0
    memory: int = 0
    waiting: bool = False
    calls: int = 0
    kinds: str = ""
    purposes: str = ""


class Stack(Record):
    """The rank's stacks: faulthandler's text, and what the rank is doing."""

    text: str
    facts: dict[str, JsonValue]


class NeedsInput(Record):
    """The rank can take the next piece of the input of `launch`."""


class Exited(Record):
    """The rank has exited. Its code is None if it was ordered to end; overdue: it did not end in the time it had."""

    exit_code: int | None
    overdue: bool = False


# Between a rank and `launch`.


class Meeting(Record):
    """Where rank 0 listens for the other ranks; None requests that address."""

    text: str | None


# Between `launch` on node 0 and `launch` on another node.


class Join(Record):
    """A node is there, and this was typed on it: the version, TARGET and its arguments, and the number of its ranks."""

    host: str
    version: str
    target: str
    args: tuple[str, ...]
    ranks: int


class Begin(Record):
    """Start the ranks of this node, in an attempt that all nodes call *run*.

    Attributes:
        first: The first of them.
        size: Number of the ranks of all nodes.
        run: The name of the attempt.
        nonce: From this and the secret of the start the key follows with which agents and ranks reach the monitor.
        addresses: Where the monitor listens, as node 0 sees it.
        port: The monitor's port.
        host_timeout: Seconds for which a host may be silent.
        variables: Variables of the ranks: the spec, and the count of restarts.
    """

    first: int
    size: int
    run: str
    nonce: str
    addresses: tuple[str, ...]
    port: int
    host_timeout: float
    variables: dict[str, JsonValue]


# Orders of the monitor. Four of them are of an end:
#
# | order     | when                                              | what the agent does                                |
# |-----------|---------------------------------------------------|----------------------------------------------------|
# | `Stop`    | the user stops the job                            | passes the signal on, and gives the ranks time     |
# | `Release` | after `Stop`: every program has ended             | lets its ranks exit, which wait for other ranks    |
# | `End`     | a rank has failed, or the time of `Stop` is over  | ends its ranks, and stays for some seconds         |
# | `Leave`   | every rank has ended, or only those that save run | exits once its own ranks have ended                |


class ShowStacks(Record):
    """Send the stacks of the ranks."""


class Input(Record):
    """The next piece of the rank's input, in base64; "" is the end of the input. It answers `NeedsInput`."""

    data: str


class PassSignal(Record):
    """Send the ranks a signal."""

    number: int


class Resize(Record):
    """The terminals of rank 0's output and error output have these rows and columns now; () for one that is none."""

    windows: tuple[tuple[int, ...], ...]


class Stop(Record):
    """The user stops the job: send the ranks this signal, and give them this many seconds to end."""

    number: int
    grace: float


class Release(Record):
    """Every program has ended after a `Stop`: let the ranks exit that wait for others."""


class Leave(Record):
    """Exit with the job's code; seconds: how long ranks of other agents may still save, whose end is awaited."""

    exit_code: int
    seconds: float = 0.0


class End(Record):
    """End the ranks, and exit with the job's code; a rank that is saving has *grace* seconds."""

    exit_code: int
    grace: float = 0.0


Order = ShowStacks | Input | PassSignal | Resize | Stop | Release | Leave | End
OfRank = Named | Placed | MonitorAt | BeMonitor | HoldLock | Failed | Returned | Done | Saving
OfAgent = Progress | Stack | NeedsInput | Exited
Message = OfRank | OfAgent | Meeting | Join | Begin | Order

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message, rank: int = NO_RANK) -> bytes:
    """Return a message as one line.

    Args:
        message: The message.
        rank: The rank or the attempt that it belongs to.
    """
    text = json.dumps([rank, type(message).__name__, vars(message)], default=vars)
    return text.encode() + b"\n"


def take_lines(unread: bytearray, piece: bytes) -> Iterator[bytes]:
    """Append *piece* to *unread*, and take out the lines that are complete; each byte is searched only once."""
    searched = len(unread)
    unread += piece
    while (end := unread.find(b"\n", searched)) >= 0:
        line, unread[: end + 1], searched = bytes(unread[:end]), b"", 0
        yield line


def decode(line: bytes) -> tuple[int, Message]:
    """Return the rank or the attempt, and the message, that a line holds.

    Raises:
        BadMessageError: The line is not a message.
    """
    try:
        rank, name, values = json.loads(line)
        if type(rank) is not int:
            raise BadMessageError("the rank is no number")
        return rank, _read(_KINDS[name], values)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise BadMessageError(f"{type(error).__name__}: {error}") from None


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(hint: Any, value: Any) -> Any:
    """Return *value* as the type *hint*.

    Raises:
        ValueError: It has another type; TypeError and KeyError mean the same.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return None if value is None and NoneType in inner else _read(inner[0], value)
    if origin is tuple:
        return tuple(_read(inner[0], one) for one in _of_type(list, value))
    if origin is dict:
        return _of_type(dict, value)
    if isinstance(hint, type) and issubclass(hint, Record):
        fields = _of_type(dict, value)
        return cast("Any", hint)(**{name: _read(_hints(cast("Any", hint))[name], one) for name, one in fields.items()})
    return value if hint is Any else _read_plain(hint, value)


def _read_plain(hint: type[Any], value: Any) -> Any:
    if issubclass(hint, StrEnum):
        return hint(value)
    return float(value) if hint is float and type(value) is int else _of_type(hint, value)


def _of_type(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise BadMessageError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value
