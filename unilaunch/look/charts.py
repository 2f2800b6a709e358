"""What the charts of a page show: the curves of a run by step and by time, and where each rank's time goes.

Two runs are drawn over each other; then each has a colour, and their names tell curves and charts apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from unilaunch.interfaces.report_layout import Plot
from unilaunch.look.drawing import Chart, Curve
from unilaunch.look.run_folder import LARGEST, RankRun, Run

#: The largest number of ranks with one curve each; of more ranks the fastest, median and slowest are drawn.
_MOST_RANKS = 8
_MOST_BARS = 16
_UNITS = (("hours", 3 * 3600, 3600), ("minutes", 180, 60))
#: A rank's values, each with its time.
_Values = Callable[[RankRun], Iterator[tuple[float, float]]]


class Split(NamedTuple):
    """Mean seconds of the parts of a step; their sum is the whole step."""

    computing: float
    communicating: float
    waiting: float


class Bar(NamedTuple):
    """The time of a rank in a step, by its parts.

    Attributes:
        name: The rank.
        widths: Of its parts, in percent of the longest bar.
        split: Its parts, in seconds.
    """

    name: str
    widths: Sequence[float]
    split: Split


class Bars(NamedTuple):
    """The time of each rank in a step."""

    title: str
    parts: Sequence[str]
    rows: Sequence[Bar]


def plot_chart(plot: Plot, runs: Sequence[Run]) -> Chart | None:
    """Return the curves of each run over its steps; None if there are none.

    With two runs each run has a colour, and names tell the curves apart; with one run each curve has a colour.
    """
    single = len(plot.curves) == 1
    curves = []
    for number, run in enumerate(runs):
        for place, value in enumerate(plot.curves):
            name = (run.name if len(runs) > 1 else "") if single else value.label
            colour = number if len(runs) > 1 else place
            if points := curve(run, value.key):
                curves.append(Curve(name, points, colour, dashed=number > 0))
    return Chart(plot.title, runs[0].layout.step, plot.title.lower(), curves, plot.percent) if curves else None


def curve(run: Run, key: str) -> dict[float, float]:
    """Return a figure by step: of the result, or as far as the run has come; {} if there is none."""
    listed = run.result.figures.get(key)
    if isinstance(listed, list) and listed and all(map(_is_number, listed)):
        return dict(enumerate(listed, start=1))
    step = run.layout.step
    for rows in _sources(run):
        if points := {row[step]: row[key] for row in rows if _is_number(row.get(step)) and _is_number(row.get(key))}:
            return points
    return {}


def _sources(run: Run) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Give the sources of a step's figures, the best one first."""
    lists = (value for value in run.result.figures.values() if isinstance(value, list))
    yield [row for rows in lists for row in rows if isinstance(row, dict)]
    yield max((rank.series for rank in run.ranks), key=len, default=[])  # a rank that was killed has written less
    for rank in run.ranks:
        yield [event.model_extra or {} for event in rank.events]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def largest_difference(first: Run, second: Run, key: str) -> tuple[float, int]:
    """Return by how much a curve of two runs differs at most, and how many steps both have."""
    one, other = curve(first, key), curve(second, key)
    common = one.keys() & other.keys()
    return max((abs(one[step] - other[step]) for step in common), default=0.0), len(common)


def rank_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts that have a curve for each rank: seconds of each step, memory, processor, output."""
    of_runs = []
    for number, run in enumerate(runs):
        of, colour = (f", {run.name}", number) if len(runs) > 1 else ("", None)
        step = run.layout.step
        charts = [Chart(f"{step.capitalize()}s{of}", step, "seconds", _curves(_step_seconds(run), colour))]
        for title, unit, values in _OVER_TIME:
            time, by_rank = _timeline(run, values)
            curves = _curves(_chosen(by_rank), colour)
            charts.append(Chart(f"{title}{of}", f"{time} since the start", unit, curves))
        of_runs.append(charts)
    return [chart for alike in zip(*of_runs, strict=True) for chart in alike if chart.curves]


def _step_seconds(run: Run) -> dict[str, dict[float, float]]:
    """Return the seconds of each step but the first, which warms up, by the name of a curve.

    Of more than `_MOST_RANKS` ranks these are the fastest, the median and the slowest one of each step.
    """
    step = run.layout.step
    seconds_of = {
        rank.rank: {row[step]: row["seconds"] for row in rank.series[1:] if {step, "seconds"} <= row.keys()}
        for rank in run.ranks
    }
    by_rank = {rank: seconds for rank, seconds in seconds_of.items() if seconds}
    if len(by_rank) <= _MOST_RANKS:
        return {f"rank {rank}": seconds for rank, seconds in by_rank.items()}
    by_step: dict[float, list[float]] = {}
    for seconds in by_rank.values():
        for number, value in seconds.items():
            by_step.setdefault(number, []).append(value)
    kinds: dict[str, Callable[[list[float]], float]] = {"fastest rank": min, "median rank": median, "slowest rank": max}
    return {name: {number: kind(values) for number, values in by_step.items()} for name, kind in kinds.items()}


def _timeline(run: Run, values: _Values) -> tuple[str, dict[int, dict[float, float]]]:
    """Return a unit of time that suits a run's length, and each rank's values by the time since the run's start.

    Ranks without two values are left out.
    """
    lengths = ((unit, seconds) for unit, least, seconds in _UNITS if (run.seconds or 0) >= least)
    unit, seconds = next(lengths, ("seconds", 1))
    begin = run.began or 0.0
    points = {rank.rank: {(time - begin) / seconds: value for time, value in values(rank)} for rank in run.ranks}
    return unit, {rank: own for rank, own in points.items() if len(own) > 1}


def _chosen(by_rank: Mapping[int, Mapping[float, float]]) -> dict[str, Mapping[float, float]]:
    """Return the curves by name; of more than `_MOST_RANKS` ranks those with the greatest, median and least mean."""
    if len(by_rank) <= _MOST_RANKS:
        return {f"rank {rank}": points for rank, points in by_rank.items()}
    ordered = sorted(by_rank, key=lambda rank: sum(by_rank[rank].values()) / len(by_rank[rank]))
    three = {"most": ordered[-1], "median": ordered[len(ordered) // 2], "least": ordered[0]}
    return {f"rank {rank}, {kind}": by_rank[rank] for kind, rank in three.items()}


def _curves(by_name: Mapping[str, Mapping[float, float]], colour: int | None) -> list[Curve]:
    return [
        Curve(name, points, number if colour is None else colour)
        for number, (name, points) in enumerate(by_name.items())
        if points
    ]


def _memory(rank: RankRun) -> Iterator[tuple[float, float]]:
    """Return a rank's memory over time, in MB."""
    return ((row.time, row.memory / 1e6) for row in rank.usage if row.memory is not None)


def _cores(rank: RankRun) -> Iterator[tuple[float, float]]:
    """Return how many processor cores a rank used, over time: processor seconds per second."""
    for before, after in zip(rank.usage, rank.usage[1:], strict=False):
        if after.time - before.time > 0.1:  # noqa: PLR2004  (/proc counts in hundredths of a second)
            yield after.time, max(0.0, (after.cpu - before.cpu) / (after.time - before.time))


def _written(rank: RankRun) -> Iterator[tuple[float, float]]:
    """Return how much a rank had written, over time, in kB."""
    return ((time, size / 1e3) for time, size in rank.sizes)


_OVER_TIME: Sequence[tuple[str, str, _Values]] = (
    ("Memory of each rank", "MB", _memory),
    ("Processor of each rank", "cores", _cores),
    ("Output of each rank", "kB written", _written),
)


def time_bars(runs: Sequence[Run]) -> list[Bars]:
    """Return the bars of the runs that have times; of many ranks a selection, by falling computing time."""
    bars = []
    for run in runs:
        of = f", {run.name}" if len(runs) > 1 else ""
        if shares := _split_time(run):
            longest = max(sum(split) for split in shares.values()) or 1.0
            ranks = sorted(shares)
            if len(ranks) > _MOST_BARS:
                ordered = sorted(ranks, key=lambda rank: -shares[rank].computing)
                ranks = ordered[:: -(-len(ordered) // _MOST_BARS)]
            rows = [
                Bar(f"rank {rank}", [100 * part / longest for part in shares[rank]], shares[rank]) for rank in ranks
            ]
            bars.append(Bars(f"Where the time goes, seconds per {run.layout.step}{of}", Split._fields, rows))
    return bars


def _split_time(run: Run) -> dict[int, Split]:
    """Return the parts of each rank's time; {} if a rank has none.

    In a step the rank with the shortest communication did not wait: the excess of the others is waiting. These
    are means, since they add up: a wait in every tenth step has a median of 0.
    """
    by_rank = {rank.rank: _times(rank, run.layout.step) for rank in run.ranks}
    common = sorted(set.intersection(*(set(times) for times in by_rank.values())))[1:]  # the first one warms up
    if not common:
        return {}
    least = {step: min(times[step][1] for times in by_rank.values()) for step in common}
    return {
        rank: Split(
            fmean(times[step][0] - times[step][1] for step in common),
            fmean(least.values()),
            fmean(times[step][1] - least[step] for step in common),
        )
        for rank, times in by_rank.items()
    }


def _times(rank: RankRun, step: str) -> dict[float, tuple[float, float]]:
    """Return the seconds of each step, and how many of these were communication."""
    keys = {step, "seconds", "communication"}
    return {row[step]: (row["seconds"], row["communication"]) for row in rank.series if keys <= row.keys()}
