"""`unilaunch status` and `unilaunch stacks`: look into a running job from another terminal.

The monitor of the job answers, at the socket in the output folder. Of a job that has ended the folder tells the status.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from unilaunch.errors import InputError, one_line
from unilaunch.folder.claim import is_held, read_marker
from unilaunch.folder.failure import Cause
from unilaunch.folder.files import refuse_unreadable
from unilaunch.folder.folder import SOCKET
from unilaunch.interfaces.command import Command
from unilaunch.look.run_folder import RankRun, Run, have_ended
from unilaunch.monitor.messages import Stack
from unilaunch.monitor.stacks import group
from unilaunch.monitor.stragglers import Straggler
from unilaunch.monitor.verdict import ranks
from unilaunch.overriding import override
from unilaunch.spec.run_spec import Spec

_ANSWER = 30.0  # seconds for an answer
_LARGEST = 1 << 28  # bytes of one
_PATIENCE, _TICK = 3.0, 0.1  # seconds for the last agents of a job that has ended, and between two looks
_HEADS = ("rank", "host", "device", "state", "doing", "s/step", "progress", "memory")


class StatusSpec(Spec):
    """Which job to inspect, and how to show its state."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder of a job")
    as_json: bool = Field(default=False, description="as JSON")


class StatusCommand(Command):
    """Show what each rank of a running job is doing, or how a job ended."""

    help = "show what each rank of a running job is doing, or how the job ended"
    examples = ("unilaunch status", "unilaunch status log_output --json", "watch unilaunch status")
    spec = StatusSpec

    @override
    def run(self, options: StatusSpec) -> int:
        until = time.monotonic() + _PATIENCE
        held = is_held(options.folder)
        while not (status := ask(options.folder, "/status") or _read_ended(options.folder)):
            if not held or time.monotonic() > until:
                raise not_running(options.folder)
            time.sleep(_TICK)
            held = is_held(options.folder)
        text = json.dumps(status, indent=1) + "\n" if options.as_json else show(status)
        sys.stdout.write(text)
        return 0


def _read_ended(folder: Path) -> dict[str, Any] | None:
    """Return how the job of *folder* ended; None if it still runs or may run on another host, or if there is none."""
    if not any(folder.glob("rank.*/events.jsonl")) or is_held(folder):
        return None
    run, marker = Run(folder), read_marker(folder)
    undecided = not run.report and any(rank.exit_code is None for rank in run.ranks)
    if undecided and marker and marker.host != socket.gethostname():  # its lock may not be seen here: NFS, Lustre
        return None
    return {
        "state": _state(run),
        "run": marker.run if marker else "",
        "size": len(run.ranks),
        "restarts": None,
        "verdict": run.report.verdict if run.report else None,
        "straggler": None,
        "ranks": [_ended_rank(rank) for rank in run.ranks],
    }


def _state(run: Run) -> str:
    if run.report:
        return "stopped" if run.report.first.cause is Cause.ENDED_FROM_OUTSIDE else "failed"
    if any(event.phase == "stopping" for rank in run.ranks for event in rank.events):
        return "stopped"
    return "done" if all(rank.exit_code == 0 for rank in run.ranks) else "ended"


def _ended_rank(rank: RankRun) -> dict[str, Any]:
    phases = [event.phase for event in rank.events if event.phase]
    return {
        "rank": rank.rank, "host": rank.host, "device": rank.device, "state": "ended",
        "phase": phases[-1] if phases else None, "step": None, "values": {}, "steps": None,
        "busy_seconds": None, "seconds_per_step": None, "received_bytes": None, "idle_seconds": None,
        "memory_bytes": None, "exit_code": rank.exit_code,
    }  # fmt: skip


def show(status: dict[str, Any]) -> str:
    """Return a job's state as lines of text: the job's, then a table of the ranks."""
    lines = [_head(status)]
    if slow := status.get("straggler"):
        lines.append(Straggler(slow["straggler"], slow["host"], slow["factor"], slow["steps"]).line)
    rows = [_HEADS, *map(_row, status["ranks"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _head(status: dict[str, Any]) -> str:
    size = f"{status['size']} rank{'s' * (status['size'] > 1)}"
    again = f", started again {status['restarts']} times" if status.get("restarts") else ""
    return f"{status['state']}: {size}{again}" + (f": {status['verdict']}" if status.get("verdict") else "")


def _row(rank: dict[str, Any]) -> tuple[str, ...]:
    seconds, idle, memory = rank["seconds_per_step"], rank["idle_seconds"], rank["memory_bytes"]
    state = rank["state"] if rank["exit_code"] is None else f"exit code {rank['exit_code']}"
    return (
        str(rank["rank"]),
        rank["host"],
        rank["device"],
        state,
        _doing(rank),
        f"{seconds:.3g}" if seconds else "-",
        f"{idle:.0f} s ago" if idle is not None else "-",
        f"{memory / 1e6:.0f} MB" if memory else "-",
    )


def _doing(rank: dict[str, Any]) -> str:
    step = rank["step"]
    place = f"{step['kind']} {step['number']}" + ("" if step["total"] is None else f"/{step['total']}") if step else ""
    figures = [f"{name} {value:.4g}" for name, value in rank["values"].items()]
    return ", ".join([place or str(rank["phase"] or "-"), *figures])


class StacksSpec(Spec):
    """Which job to inspect, and how to show its stacks."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder of a running job")
    full: bool = Field(default=False, description="the whole stacks of all threads, not only the place of the main one")
    as_json: bool = Field(default=False, description="every rank's text as JSON")


class StacksCommand(Command):
    """Show where each rank of a running job stands, without stopping it."""

    help = "show where each rank of a running job stands, equal ones together"
    examples = ("unilaunch stacks", "unilaunch stacks log_output --full")
    spec = StacksSpec

    @override
    def run(self, options: StacksSpec) -> int:
        answer = ask(options.folder, "/stacks")
        if answer is None and have_ended(options.folder):
            raise InputError(f"{options.folder}: the job there has ended: `unilaunch status {options.folder}` says how")
        if answer is None:
            raise not_running(options.folder)
        sys.stdout.write(json.dumps(answer, indent=1) + "\n" if options.as_json else _text(answer, full=options.full))
        return 0


def _text(answer: dict[str, Any], *, full: bool) -> str:
    stacks = {int(rank): Stack(str(one["text"]), dict(one["facts"])) for rank, one in answer["stacks"].items()}
    lines = []
    for one in group(stacks):
        lines.append(f"{ranks(one['ranks'])}: {one['where']}")
        lines += [f"    {line}" for line in one["stack"].splitlines()] if full else []
    if answer["silent"]:
        lines.append(f"{ranks(answer['silent'])}: no answer")
    return "".join(f"{one_line(line)}\n" for line in lines or ["no rank is running"])


def ask(folder: Path, page: str) -> dict[str, Any] | None:
    """Return what the monitor answers; None if no monitor of a running job listens in *folder*.

    Args:
        folder: The output folder.
        page: "/status" or "/stacks".

    Raises:
        InputError: This user has no access, or there is no valid answer in time.
    """
    connection = _connect(folder)
    if connection is None:
        return None
    data = bytearray()
    try:
        with connection, suppress(ConnectionError):  # the job may end in the meantime
            connection.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
            while (piece := connection.recv(1 << 16)) and len(data) < _LARGEST:
                data += piece
    except TimeoutError:
        raise _unanswered(folder) from None
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    if not head:
        return None
    try:
        answer = json.loads(body)
    except ValueError:
        raise InputError(f"{folder / SOCKET}: the answer is not whole: ask again") from None
    return answer if isinstance(answer, dict) else None


def _connect(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_ANSWER)
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        connection.close()
        raise InputError(f"{folder}: no output folder: {error.strerror}") from None
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")  # the name of a Unix socket has at most 107 bytes
    except PermissionError:
        connection.close()
        raise InputError(f"{folder}: the job there belongs to another user: only its owner can look into it") from None
    except BlockingIOError:  # so many requests wait already that the kernel takes no more
        connection.close()
        raise _unanswered(folder) from None
    except OSError:  # no process listens, or the monitor runs on another host
        connection.close()
        return None
    finally:
        os.close(descriptor)
    return connection


def _unanswered(folder: Path) -> InputError:
    return InputError(
        f"{folder}: the job's monitor does not answer within {_ANSWER:g} s: if launch is paused (Ctrl-Z), continue "
        "it with fg"
    )


def not_running(folder: Path) -> InputError:
    """Return why the job of *folder* cannot be inspected; raise it where this user may not read the folder."""
    refuse_unreadable(folder)
    marker = read_marker(folder)
    if marker is None:
        return InputError(f"{folder}: no output folder of a job: expected the folder that --output-dir names")
    where = f"look from {marker.host}, or from the host of `launch`"
    return InputError(
        f"{folder}: no job is running there that this host can reach; if one runs on other hosts, {where}"
    )
