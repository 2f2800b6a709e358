"""What ranks, agents and the monitor tell each other: a closed list of messages, checked when they arrive.

On the wire a message is one line of JSON: [rank, name, {field: value}]. In orders and meetings the number is that of
the attempt: how often the job was started before. The version of the protocol is part of the handshake
(`unilaunch.handshake`). Nothing that arrives is executed.
"""

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from unilaunch.json_value import JsonValue
from unilaunch.output.failure import Failure

#: Bytes of one message.
LARGEST = 1 << 26
#: The rank of a message that is of none.
NO_RANK = -1


class BadMessageError(ValueError):
    """What has arrived is no message."""


# From a rank. Its agent passes them on to the monitor, but for those that say otherwise.


@dataclass(frozen=True, slots=True)
class Named:
    """The rank's number is known; attempt: how often the job was started before. The first message of a rank."""

    rank: int
    host: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """All ranks have agreed on who they are and where their output goes; a program may have handlers of signals."""

    host: str
    device: str
    run: str
    folder: str
    shown: str
    abort: bool
    has_handlers: bool = True


@dataclass(frozen=True, slots=True)
class MonitorAt:
    """Where the monitor listens; for the agent."""

    where: str


@dataclass(frozen=True, slots=True)
class BeMonitor:
    """The agent is to be the monitor, on the listening socket that comes with this; for rank 0's agent."""

    secret: str
    size: int
    several: bool
    host_timeout: float
    lost_patience: float
    stall_timeout: float | None
    abort: bool
    metrics: int | None
    metrics_address: str


@dataclass(frozen=True, slots=True)
class HoldLock:
    """The agent is to keep the file that comes with this open: it holds the output folder for the job."""


@dataclass(frozen=True, slots=True)
class Refused:
    """All ranks have refused the input; rank 0 has said why."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank fails; log: what its log is to say of that, when the verdict shows it instead of the rank."""

    failure: Failure
    log: str = ""


@dataclass(frozen=True, slots=True)
class Returned:
    """The value of a function, or the result of a model; both are JSON."""

    value: JsonValue = None
    result: dict[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The program has ended; leaving: the rank waits for no other one any more."""

    leaving: bool = False


# From an agent to the monitor.


@dataclass(frozen=True, slots=True)
class Progress:
    """What the rank is doing, and how many seconds ago that changed; its pace (`Pace`), and its memory in bytes."""

    facts: dict[str, JsonValue]
    age: float
    steps: int = 0
    busy: float = 0.0
    received: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the rank stands: faulthandler's text, and what the rank is doing."""

    text: str
    facts: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Exited:
    """The rank has exited: with which code, None if it was ordered to; overdue: the time for its end was too short."""

    exit_code: int | None
    overdue: bool = False


# Between a rank and `launch`.


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where rank 0 listens for the other ranks; None asks for it."""

    text: str | None


# Orders of the monitor.


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Tell where the ranks stand; native: with the frames of C and C++, by py-spy."""

    native: bool = False


@dataclass(frozen=True, slots=True)
class PassSignal:
    """Give the ranks a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The user stops the job: give the ranks this signal, and this many seconds to end."""

    number: int
    grace: float


@dataclass(frozen=True, slots=True)
class Release:
    """Every program has ended: let the ranks go that wait for others."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Every rank has ended: exit, with the job's code."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class End:
    """End the ranks, and exit with the job's code."""

    exit_code: int


Order = ShowStacks | PassSignal | Stop | Release | Leave | End
OfRank = Named | Placed | MonitorAt | BeMonitor | HoldLock | Refused | Failed | Returned | Done
OfAgent = Progress | Stack | Exited
Message = OfRank | OfAgent | Meeting | Order

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message, rank: int = NO_RANK) -> bytes:
    """Return a message as one line.

    Args:
        message: What is told.
        rank: Of which rank, or of which attempt.
    """
    values = {name.name: getattr(message, name.name) for name in fields(message)}
    text = json.dumps([rank, type(message).__name__, values], default=asdict)
    return text.encode() + b"\n"


def decode(line: bytes) -> tuple[int, Message]:
    """Return the rank or the attempt, and the message, that a line holds.

    Raises:
        BadMessageError: It holds none.
    """
    try:
        rank, name, values = json.loads(line)
        if type(rank) is not int:
            raise BadMessageError("the rank is no number")
        return rank, _read(_KINDS[name], values)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadMessageError(f"{type(error).__name__}: {error}") from None


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(hint: Any, value: Any) -> Any:
    """Return *value* as what *hint* says it must be.

    Raises:
        ValueError: It is something else; so may TypeError and KeyError say.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return None if value is None and NoneType in inner else _read(inner[0], value)
    if origin is tuple:
        return tuple(_read(inner[0], one) for one in _of_type(list, value))
    if origin is dict:
        return _of_type(dict, value)
    if is_dataclass(hint):
        told = _of_type(dict, value)
        return cast("Any", hint)(**{name: _read(_hints(cast("Any", hint))[name], one) for name, one in told.items()})
    return value if hint is Any else _read_plain(hint, value)


def _read_plain(hint: type[Any], value: Any) -> Any:
    if issubclass(hint, StrEnum):
        return hint(value)
    return float(value) if hint is float and type(value) is int else _of_type(hint, value)


def _of_type(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise BadMessageError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value
