"""The state of a running job at this moment as JSON, for `unilaunch status` and the live metrics."""

import time
from typing import Any

from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.rank_seen import RankSeen
from unilaunch.monitor.stragglers import Straggler
from unilaunch.step import Step


def take_snapshot(inbox: Inbox, size: int, straggler: Straggler | None) -> dict[str, Any]:
    """Return the job's state; times are in seconds, memory in bytes.

    Args:
        inbox: The agents' messages.
        size: Number of ranks.
        straggler: The rank that delays the others; None if none does.
    """
    now = time.monotonic()
    return {
        "state": "running",
        "size": size,
        "restarts": inbox.attempt,
        "straggler": straggler.as_json() if straggler else None,
        "ranks": [_rank(rank, inbox.ranks.get(rank, RankSeen()), now) for rank in range(size)],
    }


def _rank(number: int, seen: RankSeen, now: float) -> dict[str, Any]:
    phase, step = seen.progress.get("phase"), Step.from_facts(seen.progress)
    return {
        "rank": number,
        "host": seen.host,
        "device": seen.device,
        "state": seen.state.value,
        "phase": phase if isinstance(phase, str) else None,
        "step": {"kind": step.kind, "number": step.number, "total": step.total} if step else None,
        "values": dict(step.values) if step else {},
        "steps": seen.pace.steps,
        "busy_seconds": seen.pace.busy,
        "seconds_per_step": seen.step_seconds or None,
        "received_bytes": seen.pace.received,
        "memory_bytes": seen.pace.memory,
        "idle_seconds": max(0.0, now - seen.moved) if seen.moved else None,
        "exit_code": seen.exit_code,
    }
