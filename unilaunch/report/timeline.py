"""The memory, processor time and output of a run over time, for programs with and without steps."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from unilaunch.report.run import RankRun, Run

_UNITS = (("hours", 3 * 3600, 3600), ("minutes", 180, 60))


class Timeline(NamedTuple):
    """Values over the time of a run.

    Attributes:
        unit: The unit of the time.
        by_rank: Each rank's values by the time since the run's start; ranks without two values are left out.
    """

    unit: str
    by_rank: dict[int, dict[float, float]]


def memory(run: Run) -> Timeline:
    """Return each rank's memory, in MB."""
    return _timeline(run, lambda rank: ((row.time, row.memory / 1e6) for row in rank.usage if row.memory is not None))


def cores(run: Run) -> Timeline:
    """Return how many processor cores each rank used: processor seconds per second."""
    return _timeline(run, _cores)


def _cores(rank: RankRun) -> Iterator[tuple[float, float]]:
    for before, after in zip(rank.usage, rank.usage[1:], strict=False):
        if after.time - before.time > 0.1:  # noqa: PLR2004  (/proc counts in hundredths of a second)
            yield after.time, max(0.0, (after.cpu - before.cpu) / (after.time - before.time))


def written(run: Run) -> Timeline:
    """Return how much each rank had written, in kB."""
    return _timeline(run, lambda rank: ((time, size / 1e3) for time, size in rank.sizes))


def _timeline(run: Run, values: Callable[[RankRun], Iterator[tuple[float, float]]]) -> Timeline:
    unit, seconds = _unit(run)
    begin = run.began or 0.0
    points = {rank.rank: {(time - begin) / seconds: value for time, value in values(rank)} for rank in run.ranks}
    return Timeline(unit, {rank: own for rank, own in points.items() if len(own) > 1})


def _unit(run: Run) -> tuple[str, int]:
    """Return a unit of time that suits a run's length, and its seconds."""
    return next(((unit, seconds) for unit, least, seconds in _UNITS if (run.seconds or 0) >= least), ("seconds", 1))


def span_text(seconds: float) -> str:
    """Return a duration as text: "4.2 s", "3 min 5 s", "2 h 7 min"."""
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def chosen(by_rank: Mapping[int, Mapping[float, float]], most: int) -> dict[str, Mapping[float, float]]:
    """Return the curves by their names; of more than *most* ranks those with the greatest, median and least mean."""
    if len(by_rank) <= most:
        return {f"rank {rank}": points for rank, points in by_rank.items()}
    ordered = sorted(by_rank, key=lambda rank: sum(by_rank[rank].values()) / len(by_rank[rank]))
    three = {"most": ordered[-1], "median": ordered[len(ordered) // 2], "least": ordered[0]}
    return {f"rank {rank}, {kind}": by_rank[rank] for kind, rank in three.items()}
