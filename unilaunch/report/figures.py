"""The plots of a page, drawn by plotly."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from unilaunch.report.reading import Run
from unilaunch.report.series import Split, epoch_seconds, evaluations, losses, split_time, thin

#: Ranks that get a curve of their own; of more the fastest, the median and the slowest are drawn.
_MOST_RANKS = 8
_COLOURS = ("#2a78d6", "#e0662b", "#2f9e6e", "#9352c8")
_DASHES = ("solid", "dash")
_ACCURACIES = {"train_accuracy": "train", "val_accuracy": "validation", "test_accuracy": "test"}


def loss_figure(runs: Sequence[tuple[str, Run]]) -> go.Figure | None:
    """Return the loss of each run over its epochs; None if there is none."""
    figure = _figure("loss", "epoch")
    for number, (name, run) in enumerate(runs):
        _draw(figure, losses(run), name=name, line={"color": _COLOURS[number], "dash": _DASHES[number % 2]})
    return figure if figure.data else None


def accuracy_figure(runs: Sequence[tuple[str, Run]]) -> go.Figure | None:
    """Return the accuracies of each run where they were measured; None if they were not."""
    figure = _figure("accuracy", "epoch")
    figure.update_yaxes(tickformat=".0%")
    for number, (name, run) in enumerate(runs):
        for colour, (key, what) in zip(_COLOURS, _ACCURACIES.items(), strict=False):
            measured = {one.epoch: getattr(one, key) for one in evaluations(run) if one.epoch is not None}
            known = {epoch: value for epoch, value in measured.items() if value is not None}
            line = {"color": colour, "dash": _DASHES[number % 2]}
            _draw(figure, known, name=f"{what}{f', {name}' if len(runs) > 1 else ''}", line=line)
    return figure if figure.data else None


def time_figure(run: Run) -> go.Figure | None:
    """Return where each rank's time goes, stacked; None if unknown."""
    shares = split_time(run)
    if not shares:
        return None
    figure = _figure("seconds per epoch", "rank")
    figure.update_layout(barmode="stack")
    for number, name in enumerate(Split._fields):
        figure.add_bar(
            x=[str(rank) for rank in shares], y=[share[number] for share in shares.values()], name=name,
            marker_color=_COLOURS[number],
        )  # fmt: skip
    return figure


def epoch_figure(run: Run) -> go.Figure | None:
    """Return the seconds of every epoch; None if unknown."""
    figure = _figure("seconds", "epoch")
    for name, seconds in epoch_seconds(run, _MOST_RANKS).items():
        _draw(figure, seconds, name=name, line={"width": 1})
    return figure if figure.data else None


def _draw(figure: Any, curve: Mapping[int, float], **how: Any) -> None:
    x, y = thin(list(curve), list(curve.values()))
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
