"""The record of how a rank failed, and the closed list of causes."""

import re
import signal
import time
import traceback
from collections.abc import Mapping
from enum import StrEnum

from unilaunch.errors import MixedCallsError, PeerLostError, RefusedTogetherError, StoppedError, UnilaunchError
from unilaunch.interfaces.step import Step
from unilaunch.json_value import JsonValue
from unilaunch.record import Record, field


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
    MIXED_CALLS = "mixed calls"
    ENDED_FROM_OUTSIDE = "ended from outside"
    REFUSED_INPUT = "refused input"
    CANNOT_START = "cannot start"
    NEVER_BEGAN = "never began"


class Failure(Record):
    """How a rank failed; the content of `failure.json`.

    Attributes:
        cause: The cause.
        message: What happened, from the process that noticed it.
        exit_code: The rank's exit code: 128 + N for signal N.
        error: The exception's type; "" if there was none.
        signal: The name of the signal that ended it; None if none did.
        rank: Its number; None for a failure of the whole job.
        host: The host that it ran on; "?" if it failed before it reported that.
        device: Its device; "?" likewise.
        phase: What it was doing.
        progress: Its progress, as its model reports it.
        time: When it failed, in seconds since 1970.
        traceback: The exception's traceback, in lines.
        last_lines: The end of its log.
        log: The path of its log.
        evidence: What the exception's notes, and the system's records, say about the cause: one line each.
        together: Whether all ranks fail in the same way, and rank 0 has shown why.
        shown: Whether the rank itself has shown why.
        final: Whether the job would fail again with the same options.
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
    shown: bool = False
    final: bool = False


#: Modules that read a program's command line; they end it with code 2 if an argument is wrong.
_PARSERS = {"argparse", "optparse", "click", "typer", "fire"}
#: Messages of frameworks, MPI and the system that another rank is lost. Only here do texts decide.
_LOST_PEER = re.compile(
    r"connection (was )?(reset|closed|aborted|refused)|broken pipe|socket (was )?closed|remote process exited"
    r"|recvvalue failed|sendbytes failed|proc_failed|connection lost|unexpected eof(?!, expected \d)|end of file"
    r"|unexpectedly disconnected",
    re.IGNORECASE,
)
#: Characters of a text in a record; a program may raise an error that quotes megabytes.
_MOST = 1 << 16
_LONGEST_NOTE = 1000  # characters of a note that the verdict shows
#: The exit code with which Open MPI 5 ends a process that finds the socket of another process closed.
_MPI_ERR_UNKNOWN = 14


def describe_exception(
    error: BaseException, exit_code: int, doing: Mapping[str, JsonValue], *, together: bool = False, shown: bool = False
) -> Failure:
    """Return a rank's failure, from the exception that ends the rank.

    Args:
        error: The exception.
        exit_code: The exit code of the process.
        doing: What the rank was doing: "phase", and its model's progress.
        together: Whether all ranks fail in the same way.
        shown: Whether the rank itself has shown why.
    """
    error = _first_of(error)
    phase, progress = split_phase(doing)
    begun = Step.last_from_facts(progress) is not None
    return Failure(
        cause=Cause.CANNOT_START if not begun and _keeps_from_starting(error) else _cause_of(error),
        message=_bounded(_message(error)),
        exit_code=exit_code,
        error="" if type(error) is RefusedTogetherError else type(error).__name__,
        phase=phase,
        progress=progress,
        traceback=()
        if isinstance(error, (SystemExit, UnilaunchError))
        else tuple(map(_bounded, traceback.format_exception(error))),
        evidence=_notes(error),
        together=together,
        shown=shown,
        final=isinstance(error, UnilaunchError) and error.final,
    )


def _first_of(error: BaseException) -> BaseException:
    """Return the error of the user's on whose way out of a block a rank has called another collective than the others.

    So does `finally: ug.torch.barrier(part)`. Other errors are returned as they are.
    """
    before = error.__context__ if isinstance(error, MixedCallsError) else None
    while before and (isinstance(before, UnilaunchError) or type(before).__module__.startswith("mpi4py")):
        before = before.__context__
    return before or error


def _bounded(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]} ... ({len(text)} characters: the rank's log has them)"


def _notes(error: BaseException) -> tuple[str, ...]:
    """Return the notes of an exception that are one line; a program may have set anything as such."""
    notes = getattr(error, "__notes__", ())
    texts = [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []
    return tuple(note for note in texts if "\n" not in note and len(note) <= _LONGEST_NOTE)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001  (of a user's class)
        return f"its message cannot be made: {type(broken).__name__} in __str__"


def split_phase(doing: Mapping[str, JsonValue]) -> tuple[str | None, dict[str, JsonValue]]:
    """Return a rank's phase, None if it has reported none, and its model's progress."""
    phase = doing.get("phase")
    return phase if isinstance(phase, str) else None, {name: doing[name] for name in doing if name != "phase"}


def _cause_of(error: BaseException) -> Cause:
    match error:
        case StoppedError() | KeyboardInterrupt():
            return Cause.ENDED_FROM_OUTSIDE
        case PeerLostError() | ConnectionError():
            return Cause.LOST_PEER
        case UnilaunchError() if error.exit_code == UnilaunchError.exit_code:
            return Cause.REFUSED_INPUT
        case _ if is_out_of_memory(error):
            return Cause.OUT_OF_MEMORY
        case SystemExit():
            return Cause.EXIT
    is_of_a_peer = _LOST_PEER.search(_message(error)) and not isinstance(error, OSError)  # of a file, or a server
    usual = Cause.MIXED_CALLS if isinstance(error, MixedCallsError) else Cause.EXCEPTION
    return Cause.LOST_PEER if is_of_a_peer else usual


def _keeps_from_starting(error: BaseException) -> bool:
    """Return whether each start would meet this error again, if no step was made before it."""
    if not isinstance(error, SystemExit) or error.code != 2:  # noqa: PLR2004  (see _PARSERS)
        return isinstance(error, ImportError | SyntaxError)
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    raised_in = str(place.tb_frame.f_globals.get("__name__", "")) if place else ""
    return raised_in.partition(".")[0] in _PARSERS


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the host or a device had no memory left: torch's error of a GPU is a RuntimeError."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def describe_exit(returncode: int, *, oom_kills: int = 0) -> Failure:
    """Return the failure of a rank that ended without reporting why.

    Args:
        returncode: Its exit code; -N if signal N ended it.
        oom_kills: How many processes of its cgroup the kernel's OOM killer has ended since the rank started.
    """
    if returncode < 0:
        name = signal_name(-returncode)
        cause = Cause.OUT_OF_MEMORY if name == "SIGKILL" and oom_kills else Cause.SIGNAL
        return Failure(cause, f"killed by {name}", 128 - returncode, signal=name)
    cause = Cause.LOST_PEER if returncode == _MPI_ERR_UNKNOWN else Cause.EXIT
    words = f"ended with exit code {returncode} and no exception reported (os._exit, os.execv, or a library's exit)"
    return Failure(cause, words, returncode)


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
