"""The plots of a page, drawn by plotly."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from unilaunch.report.reading import Run

#: Points of a curve; more cannot be seen, and make the page slow.
POINTS = 1500
_COLOURS = ("#2a78d6", "#e0662b", "#2f9e6e", "#9352c8")
_DASHES = ("solid", "dash")
_ACCURACIES = {"train_accuracy": "train", "val_accuracy": "validation", "test_accuracy": "test"}


def loss_figure(runs: Sequence[tuple[str, Run]]) -> go.Figure | None:
    """Return the loss of each run over its epochs; None if there is none."""
    figure = _figure("loss", "epoch")
    for number, (name, run) in enumerate(runs):
        losses = run.result.get("loss") or [epoch["loss"] for epoch in run.ranks[0].epochs]
        first = 1 if "loss" in run.result or not run.ranks[0].epochs else int(run.ranks[0].epochs[0]["epoch"])
        x, y = thin(list(range(first, first + len(losses))), losses)
        if y:
            figure.add_scatter(x=x, y=y, name=name, line={"color": _COLOURS[number], "dash": _DASHES[number % 2]})
    return figure if figure.data else None


def accuracy_figure(runs: Sequence[tuple[str, Run]]) -> go.Figure | None:
    """Return the accuracies of each run where they were measured; None if they were not."""
    figure = _figure("accuracy", "epoch")
    figure.update_yaxes(tickformat=".0%")
    for number, (name, run) in enumerate(runs):
        evaluations = run.result.get("evaluations") or run.ranks[0].evaluations
        for colour, (key, what) in zip(_COLOURS, _ACCURACIES.items(), strict=False):
            x, y = thin([one["epoch"] for one in evaluations], [one[key] for one in evaluations])
            if y:
                line = {"color": colour, "dash": _DASHES[number % 2]}
                figure.add_scatter(x=x, y=y, name=f"{what}{f', {name}' if len(runs) > 1 else ''}", line=line)
    return figure if figure.data else None


def time_figure(run: Run) -> go.Figure | None:
    """Return the median seconds of an epoch for each rank: computing, communicating, waiting; None if unknown.

    In an epoch the rank that communicated the shortest waited for nobody: the others' excess over it is waiting.
    """
    shares = split_time(run)
    if not shares:
        return None
    figure = _figure("seconds per epoch", "rank")
    figure.update_layout(barmode="stack")
    for number, name in enumerate(("computing", "communicating", "waiting")):
        figure.add_bar(
            x=[str(rank) for rank in shares], y=[share[number] for share in shares.values()], name=name,
            marker_color=_COLOURS[number],
        )  # fmt: skip
    return figure


def split_time(run: Run) -> dict[int, tuple[float, float, float]]:
    """Return each rank's median seconds of an epoch: computing, communicating, waiting for others."""
    from statistics import median

    by_rank = {rank.rank: {int(one["epoch"]): one for one in rank.epochs} for rank in run.ranks if rank.epochs}
    if not by_rank or len(by_rank) < len(run.ranks):
        return {}
    common = sorted(set.intersection(*(set(epochs) for epochs in by_rank.values())))[1:]  # the first one warms up
    if not common:
        return {}
    least = {epoch: min(epochs[epoch]["communication"] for epochs in by_rank.values()) for epoch in common}
    return {
        rank: (
            median(epochs[epoch]["seconds"] - epochs[epoch]["communication"] for epoch in common),
            median(least[epoch] for epoch in common),
            median(epochs[epoch]["communication"] - least[epoch] for epoch in common),
        )
        for rank, epochs in by_rank.items()
    }


def epoch_figure(run: Run) -> go.Figure | None:
    """Return the seconds of every epoch for each rank, at most eight of them; None if unknown."""
    figure = _figure("seconds", "epoch")
    for rank in run.ranks[:8]:
        epochs = rank.epochs[1:]
        x, y = thin([one["epoch"] for one in epochs], [one["seconds"] for one in epochs])
        if y:
            figure.add_scatter(x=x, y=y, name=f"rank {rank.rank}", line={"width": 1})
    return figure if figure.data else None


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
