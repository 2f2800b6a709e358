"""`unilaunch status`."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Any, ClassVar

from pydantic import Field

from unilaunch.errors import one_line
from unilaunch.folder.claim import is_held, read_marker
from unilaunch.folder.failure import Cause
from unilaunch.interfaces.command import Command
from unilaunch.look.inspection.asking import ask, not_running
from unilaunch.look.report.reading import read_end
from unilaunch.look.report.run import RankRun, Report
from unilaunch.monitor.stragglers import Straggler
from unilaunch.overriding import override
from unilaunch.spec.run_spec import Spec

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
        while not (told := ask(options.folder, "/status") or _read_ended(options.folder)):
            if not held or time.monotonic() > until:
                raise not_running(options.folder)
            time.sleep(_TICK)
            held = is_held(options.folder)
        text = json.dumps(told, indent=1) + "\n" if options.as_json else show(told)
        sys.stdout.write(text)
        return 0


def _read_ended(folder: Path) -> dict[str, Any] | None:
    """Return how the job of *folder* ended; None if it still runs or may run on another host, or if there is none."""
    if not any(folder.glob("rank.*/events.jsonl")) or is_held(folder):
        return None
    (report, ranks), marker = read_end(folder), read_marker(folder)
    undecided = not report and any(rank.exit_code is None for rank in ranks)
    if undecided and marker and marker.host != gethostname():  # its lock may not be seen here: NFS, Lustre
        return None
    return {
        "state": _state(report, ranks),
        "run": marker.run if marker else "",
        "size": len(ranks),
        "restarts": None,
        "verdict": report.verdict if report else None,
        "straggler": None,
        "ranks": [_ended_rank(rank) for rank in ranks],
    }


def _state(report: Report | None, ranks: Sequence[RankRun]) -> str:
    if report:
        return "stopped" if report.first.cause is Cause.ENDED_FROM_OUTSIDE else "failed"
    if any(event.phase == "stopping" for rank in ranks for event in rank.events):
        return "stopped"
    return "done" if all(rank.exit_code == 0 for rank in ranks) else "ended"


def _ended_rank(run: RankRun) -> dict[str, Any]:
    phases = [event.phase for event in run.events if event.phase]
    return {
        "rank": run.rank, "host": run.host, "device": run.device, "state": "ended",
        "phase": phases[-1] if phases else None, "step": None, "values": {}, "steps": None,
        "busy_seconds": None, "seconds_per_step": None, "received_bytes": None, "idle_seconds": None,
        "memory_bytes": None, "exit_code": run.exit_code,
    }  # fmt: skip


def show(told: dict[str, Any]) -> str:
    """Return a job's state as lines of text: the job's, then a table of the ranks."""
    lines = [_head(told)]
    if slow := told.get("straggler"):
        lines.append(Straggler(slow["straggler"], slow["host"], slow["factor"], slow["steps"]).line)
    rows = [_HEADS, *map(_row, told["ranks"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _head(told: dict[str, Any]) -> str:
    ranks = f"{told['size']} rank{'s' * (told['size'] > 1)}"
    again = f", started again {told['restarts']} times" if told.get("restarts") else ""
    return f"{told['state']}: {ranks}{again}" + (f": {told['verdict']}" if told.get("verdict") else "")


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
