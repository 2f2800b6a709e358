"""The charts of a page, from its runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unilaunch.interfaces.report_layout import Plot
from unilaunch.look.report.chart import Chart, Curve
from unilaunch.look.report.run import Run
from unilaunch.look.report.series import (
    Split,
    Values,
    chosen,
    cores,
    curve,
    memory,
    split_time,
    step_seconds,
    timeline,
    written,
)  # fmt: skip

#: The largest number of ranks with one curve each; of more ranks the fastest, median and slowest are drawn.
_MOST_RANKS = 8
_MOST_BARS = 16

Named = Sequence[tuple[str, Run]]


def plot_chart(plot: Plot, runs: Named) -> Chart | None:
    """Return the curves of each run over its steps; None if there are none.

    With two runs each run has a colour, and names tell the curves apart; with one run each curve has a colour.
    """
    single = len(plot.curves) == 1
    curves = []
    for number, (folder, run) in enumerate(runs):
        for place, value in enumerate(plot.curves):
            name = (folder if len(runs) > 1 else "") if single else value.label
            colour = number if len(runs) > 1 else place
            if points := curve(run, value.key):
                curves.append(Curve(name, points, colour, dashed=number > 0))
    return Chart(plot.title, runs[0][1].layout.step, plot.title.lower(), curves, plot.percent) if curves else None


def rank_charts(runs: Named) -> list[Chart]:
    """Return the charts that have a curve for each rank: seconds of each step, memory, processor, output."""
    of_runs = []
    for number, (folder, run) in enumerate(runs):
        of, colour = (f", {folder}", number) if len(runs) > 1 else ("", None)
        step = run.layout.step
        charts = [Chart(f"{step.capitalize()}s{of}", step, "seconds", _curves(step_seconds(run, _MOST_RANKS), colour))]
        for title, unit, values in _OVER_TIME:
            time, by_rank = timeline(run, values)
            curves = _curves(chosen(by_rank, _MOST_RANKS), colour)
            charts.append(Chart(f"{title}{of}", f"{time} since the start", unit, curves))
        of_runs.append(charts)
    return [chart for alike in zip(*of_runs, strict=True) for chart in alike if chart.curves]


_OVER_TIME: Sequence[tuple[str, str, Values]] = (
    ("Memory of each rank", "MB", memory),
    ("Processor of each rank", "cores", cores),
    ("Output of each rank", "kB written", written),
)


def _curves(by_name: Mapping[str, Mapping[float, float]], colour: int | None) -> list[Curve]:
    return [
        Curve(name, points, number if colour is None else colour)
        for number, (name, points) in enumerate(by_name.items())
        if points
    ]


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


def time_bars(runs: Named) -> list[Bars]:
    """Return the bars of the runs that have times; of many ranks a selection, by falling computing time."""
    bars = []
    for folder, run in runs:
        of = f", {folder}" if len(runs) > 1 else ""
        if shares := split_time(run):
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
