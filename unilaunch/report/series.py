"""The curves of a run, and what can be said of two."""

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from unilaunch.report.reading import Event, Run

#: Points of a curve; more cannot be seen, and make the page slow.
POINTS = 1500


class Split(NamedTuple):
    """Mean seconds of an epoch; their sum is the epoch's."""

    computing: float
    communicating: float
    waiting: float


def losses(run: Run) -> dict[int, float]:
    """Return the loss by epoch: of the result, or as far as the run has come."""
    if run.result.loss:
        return dict(enumerate(run.result.loss, start=1))
    ranks = [rank.epochs for rank in run.ranks if rank.epochs]
    if ranks:
        return {one.epoch: one.loss for one in max(ranks, key=len)}  # every rank has the same, one wrote most
    return {one.epoch: one.loss for one in evaluations(run) if one.epoch is not None and one.loss is not None}


def evaluations(run: Run) -> list[Event]:
    """Return what was measured after epochs: of the result, or of the first rank that noted any."""
    of_ranks = ([event for event in rank.events if event.epoch is not None] for rank in run.ranks)
    return run.result.evaluations or next((events for events in of_ranks if events), [])


def split_time(run: Run) -> dict[int, Split]:
    """Return where each rank's time goes; {} if not every rank says.

    In an epoch the rank that communicated the shortest waited for nobody: the others' excess over it is waiting. These
    are means, since they add up: a wait in every tenth epoch has a median of nothing.
    """
    by_rank = {rank.rank: {one.epoch: one for one in rank.epochs} for rank in run.ranks}
    common = sorted(set.intersection(*(set(epochs) for epochs in by_rank.values())))[1:]  # the first one warms up
    if not common:
        return {}
    least = {epoch: min(epochs[epoch].communication for epochs in by_rank.values()) for epoch in common}
    return {
        rank: Split(
            fmean(epochs[epoch].seconds - epochs[epoch].communication for epoch in common),
            fmean(least.values()),
            fmean(epochs[epoch].communication - least[epoch] for epoch in common),
        )
        for rank, epochs in by_rank.items()
    }


def epoch_seconds(run: Run, most: int) -> dict[str, dict[int, float]]:
    """Return the seconds of each epoch but the first, which warms up, by the name of a curve.

    Args:
        run: Of which run.
        most: For so many ranks a curve each; for more the fastest, the median and the slowest one of each epoch.
    """
    by_rank = {rank.rank: {one.epoch: one.seconds for one in rank.epochs[1:]} for rank in run.ranks if rank.epochs[1:]}
    if len(by_rank) <= most:
        return {f"rank {rank}": seconds for rank, seconds in by_rank.items()}
    of_epoch: dict[int, list[float]] = {}
    for seconds in by_rank.values():
        for epoch, value in seconds.items():
            of_epoch.setdefault(epoch, []).append(value)
    kinds: dict[str, Callable[[list[float]], float]] = {"fastest rank": min, "median rank": median, "slowest rank": max}
    return {name: {epoch: kind(values) for epoch, values in of_epoch.items()} for name, kind in kinds.items()}


def largest_difference(first: Run, second: Run) -> tuple[float, int]:
    """Return by how much the losses of two runs differ at most, and how many epochs both have."""
    one, other = losses(first), losses(second)
    common = one.keys() & other.keys()
    return max((abs(one[epoch] - other[epoch]) for epoch in common), default=0.0), len(common)


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most about `POINTS` points of a curve: of each stretch the least and the greatest."""
    if len(y) <= POINTS:
        return list(x), list(y)
    step = -(-2 * len(y) // POINTS)
    kept: list[int] = []
    for begin in range(0, len(y), step):
        stretch = range(begin, min(begin + step, len(y)))
        kept += sorted({min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)})
    return [x[place] for place in kept], [y[place] for place in kept]
