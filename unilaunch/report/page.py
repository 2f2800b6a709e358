"""One page, from one run or from two: jinja2 escapes all that ranks have written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from unilaunch.report import figures
from unilaunch.report.reading import Run
from unilaunch.report.series import largest_difference

_FACTS = {
    "model": "model", "backend": "framework", "dataset": "data set", "device": "device", "world_size": "ranks",
    "num_hosts": "hosts", "launcher": "launcher", "threads": "threads per rank", "seed": "seed", "epochs": "epochs",
    "train_accuracy": "train accuracy", "val_accuracy": "validation accuracy", "test_accuracy": "test accuracy",
    "seconds_per_epoch": "seconds per epoch", "compute_seconds": "of which computing",
    "communication_seconds": "of which communicating", "bytes_per_epoch": "halo bytes per epoch",
    "num_nodes": "nodes", "num_parts": "parts",
}  # fmt: skip


def make_page(runs: Sequence[tuple[str, Run]]) -> str:
    """Return the HTML of a page.

    Args:
        runs: One run, or two that are laid over each other; with the name of each.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    plots = [("Loss", figures.loss_figure(runs)), ("Accuracy", figures.accuracy_figure(runs))]
    for name, run in runs:
        of = f", {name}" if len(runs) > 1 else ""
        plots += [(f"Where the time goes{of}", figures.time_figure(run)), (f"Epochs{of}", figures.epoch_figure(run))]
    drawn = [(title, _html(figure, f"plot{number}")) for number, (title, figure) in enumerate(plots) if figure]
    return environment.get_template("template.html.j2").render(
        runs=runs, facts=_facts(runs), plots=drawn, script=get_plotlyjs() if drawn else "", versions=_versions,
        largest=_largest_difference(runs),
    )  # fmt: skip


def _html(figure: Any, name: str) -> str:
    """Return a plot's own HTML: its data is JSON, in which plotly escapes what could end a script."""
    text: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config={"displayModeBar": False, "responsive": True}
    )
    return text


def _facts(runs: Sequence[tuple[str, Run]]) -> list[tuple[str, list[str]]]:
    """Return the rows of the table: a name, and each run's value."""
    rows = []
    for key, name in _FACTS.items():
        values = [_value(key, run.facts.get(key, "")) for _, run in runs]
        if any(values):
            rows.append((name, values))
    return rows


def _value(key: str, value: Any) -> str:
    if key.endswith("accuracy") and isinstance(value, float):
        return f"{value:.2%}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and key != "seed" else str(value)


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.result.versions.items())


def _largest_difference(runs: Sequence[tuple[str, Run]]) -> str:
    if len(runs) == 1:
        return ""
    largest, common = largest_difference(runs[0][1], runs[1][1])
    return f"{largest:.2g} in {common} epochs" if common else ""
