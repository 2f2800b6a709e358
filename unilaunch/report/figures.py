"""The plots of a page, drawn by plotly."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from unilaunch.report.reading import Run
from unilaunch.report.series import Split, curve, split_time, step_seconds, thin
from unilaunch.report_layout import Plot

#: Ranks that get a curve of their own; of more the fastest, the median and the slowest are drawn.
_MOST_RANKS = 8
_COLOURS = ("#2a78d6", "#e0662b", "#2f9e6e", "#9352c8")
_DASHES = ("solid", "dash")


def plot_figure(plot: Plot, runs: Sequence[tuple[str, Run]]) -> go.Figure | None:
    """Return the curves of each run over its steps; None if there are none.

    A colour tells the curves from each other, or where there is a single one the runs.
    """
    figure = _figure(plot.title.lower(), runs[0][1].layout.step)
    if plot.percent:
        figure.update_yaxes(tickformat=".0%")
    single = len(plot.curves) == 1
    for number, (name, run) in enumerate(runs):
        for place, value in enumerate(plot.curves):
            label = name if single else f"{value.label}, {name}" if len(runs) > 1 else value.label
            line = {"color": _COLOURS[(number if single else place) % len(_COLOURS)], "dash": _DASHES[number % 2]}
            _draw(figure, curve(run, value.key), name=label, line=line)
    return figure if figure.data else None


def time_figure(run: Run) -> go.Figure | None:
    """Return where each rank's time goes, stacked; None if unknown."""
    shares = split_time(run)
    if not shares:
        return None
    figure = _figure(f"seconds per {run.layout.step}", "rank")
    figure.update_layout(barmode="stack")
    for number, name in enumerate(Split._fields):
        figure.add_bar(
            x=[str(rank) for rank in shares], y=[share[number] for share in shares.values()], name=name,
            marker_color=_COLOURS[number],
        )  # fmt: skip
    return figure


def step_figure(run: Run) -> go.Figure | None:
    """Return the seconds of every step; None if unknown."""
    figure = _figure("seconds", run.layout.step)
    for name, seconds in step_seconds(run, _MOST_RANKS).items():
        _draw(figure, seconds, name=name, line={"width": 1})
    return figure if figure.data else None


def _draw(figure: Any, points: Mapping[float, float], **how: Any) -> None:
    x, y = thin(list(points), list(points.values()))
    if y:
        figure.add_scatter(x=x, y=y, **how)


def _figure(y: str, x: str) -> Any:
    figure = go.Figure()
    grid = {"gridcolor": "rgba(128,128,128,0.2)", "zerolinecolor": "rgba(128,128,128,0.3)"}
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font={"color": "#808080"}, height=320,
        margin={"l": 60, "r": 10, "t": 10, "b": 45}, legend={"orientation": "h", "y": 1.12}, hovermode="x unified",
        showlegend=True,
    )  # fmt: skip
    figure.update_xaxes(title=x, **grid)
    figure.update_yaxes(title=y, **grid)
    return figure
