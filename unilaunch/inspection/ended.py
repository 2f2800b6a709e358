"""Read from the output folder how a job ended, in the form of a running job's snapshot."""

from pathlib import Path
from typing import Any

from unilaunch.output.claim import is_held
from unilaunch.report.reading import read_run
from unilaunch.report.run import RankRun


def read_ended(folder: Path) -> dict[str, Any] | None:
    """Return how the job of *folder* ended; None if it still runs, or if there is none.

    Raises:
        InputError: A file in the folder cannot be read.
    """
    if not any(folder.glob("rank.*/events.jsonl")) or is_held(folder):
        return None
    run = read_run(folder)
    failed = run.report is not None
    finished = all(rank.exit_code == 0 for rank in run.ranks)
    return {
        "state": "failed" if failed else "done" if finished else "ended",
        "size": len(run.ranks),
        "verdict": run.report.verdict if run.report else None,
        "straggler": None,
        "ranks": [_rank(rank) for rank in run.ranks],
    }


def _rank(run: RankRun) -> dict[str, Any]:
    phases = [event.phase for event in run.events if event.phase]
    return {
        "rank": run.rank, "host": run.host, "device": run.device, "state": "ended",
        "phase": phases[-1] if phases else None, "step": None, "values": {}, "seconds_per_step": None,
        "idle_seconds": None, "memory_bytes": None,
        "exit_code": run.failure.exit_code if run.failure else run.exit_code,
    }  # fmt: skip
