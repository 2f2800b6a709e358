"""The record of how a rank failed, and the closed list of causes."""

import re
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from unilaunch.errors import PeerLostError, StoppedError, UnilaunchError
from unilaunch.json_value import JsonValue


class Cause(StrEnum):
    """Why a rank failed."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out of memory"
    LOST_HOST = "lost host"
    LOST_AGENT = "lost agent"
    LOST_LAUNCHER = "lost launcher"
    LOST_PEER = "lost peer"
    STALLED = "stalled"
    ENDED_FROM_OUTSIDE = "ended from outside"
    REFUSED_INPUT = "refused input"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank failed; what `failure.json` says.

    Attributes:
        cause: Why.
        message: What happened, in the words of who noticed it.
        exit_code: What the rank exits with: 128 + N for signal N.
        error: The exception's type; "" if there was none.
        signal: The name of the signal that ended it; None if none did.
        rank: Which; None if it is the job's failure as a whole.
        host: Where it ran; "?" if it did not live to say.
        device: On what; "?" likewise.
        phase: What it was doing.
        progress: How far it had come: what a model notes.
        time: When, in seconds since 1970.
        traceback: The exception's, in lines.
        last_lines: The end of its log.
        log: Where its log is.
        evidence: What the system knows of the cause, each in a line.
        together: All ranks fail alike; rank 0 has said why.
        told: The rank itself has shown why.
        final: The same start would fail again.
    """

    cause: Cause
    message: str
    exit_code: int
    error: str = ""
    signal: str | None = None
    rank: int | None = None
    host: str = "?"
    device: str = "?"
    phase: str | None = None
    progress: dict[str, JsonValue] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    traceback: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    log: str = ""
    evidence: tuple[str, ...] = ()
    together: bool = False
    told: bool = False
    final: bool = False


#: What frameworks, MPI and the system say when another rank has gone; the one place where texts decide.
_LOST_PEER = re.compile(
    r"connection (was )?(reset|closed|aborted|refused)|broken pipe|socket (was )?closed|remote process exited"
    r"|recvvalue failed|sendbytes failed|proc_failed|connection lost|unexpected eof|end of file"
    r"|unexpectedly disconnected",
    re.IGNORECASE,
)
#: With this Open MPI 5 ends a process that finds the socket of another one closed.
_MPI_ERR_UNKNOWN = 14


def describe_exception(
    error: BaseException, exit_code: int, doing: Mapping[str, JsonValue], *, together: bool = False, told: bool = False
) -> Failure:
    """Return what the rank itself knows of its failure.

    Args:
        error: Why.
        exit_code: What the process exits with.
        doing: What the rank was doing: "phase", and what a model notes.
        together: All ranks fail alike.
        told: The rank itself has shown why.
    """
    phase = doing.get("phase")
    return Failure(
        cause=_cause_of(error),
        message=str(error),
        exit_code=exit_code,
        error=type(error).__name__,
        phase=phase if isinstance(phase, str) else None,
        progress={name: value for name, value in doing.items() if name != "phase"},
        traceback=() if isinstance(error, (SystemExit, UnilaunchError)) else tuple(traceback.format_exception(error)),
        together=together,
        told=told,
        final=isinstance(error, UnilaunchError) and error.final,
    )


def _cause_of(error: BaseException) -> Cause:
    match error:
        case StoppedError() | KeyboardInterrupt():
            return Cause.ENDED_FROM_OUTSIDE
        case PeerLostError() | ConnectionError():
            return Cause.LOST_PEER
        case UnilaunchError() if error.exit_code == UnilaunchError.exit_code:
            return Cause.REFUSED_INPUT
        case MemoryError():
            return Cause.OUT_OF_MEMORY
        case SystemExit():
            return Cause.EXIT
    return Cause.LOST_PEER if _LOST_PEER.search(str(error)) else Cause.EXCEPTION


def describe_exit(returncode: int, *, oom_kills: int = 0) -> Failure:
    """Return what is known of a rank that did not say why it ended.

    Args:
        returncode: Its exit code; -N if signal N ended it.
        oom_kills: How many processes of its cgroup the kernel's OOM killer has ended since the rank began.
    """
    if returncode < 0:
        name = signal_name(-returncode)
        cause = Cause.OUT_OF_MEMORY if name == "SIGKILL" and oom_kills else Cause.SIGNAL
        return Failure(cause, f"killed by {name}", 128 - returncode, signal=name)
    cause = Cause.LOST_PEER if returncode == _MPI_ERR_UNKNOWN else Cause.EXIT
    words = f"ended with exit code {returncode} and no exception (os._exit, or a library's exit)"
    return Failure(cause, words, returncode)


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
