"""One page, from one run or from two: jinja2 escapes all that ranks have written."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from unilaunch.report import figures
from unilaunch.report.reading import Run
from unilaunch.report.series import largest_difference
from unilaunch.report_layout import Plot, Value

#: What the page shows of every run.
_FACTS = (
    Value("model", "model"), Value("backend", "framework"), Value("device", "device"), Value("world_size", "ranks"),
    Value("num_hosts", "hosts"), Value("launcher", "launcher"), Value("threads", "threads per rank"),
    Value("seed", "seed"),
)  # fmt: skip


def make_page(runs: Sequence[tuple[str, Run]]) -> str:
    """Return the HTML of a page.

    Args:
        runs: One run, or two that are laid over each other; with the name of each.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    plots = dict.fromkeys(plot for _, run in runs for plot in run.layout.plots)
    titled = [(plot.title, figures.plot_figure(plot, runs)) for plot in plots]
    for name, run in runs:
        of = f", {name}" if len(runs) > 1 else ""
        steps = f"{run.layout.step.capitalize()}s{of}"
        titled += [(f"Where the time goes{of}", figures.time_figure(run)), (steps, figures.step_figure(run))]
    drawn = [(title, _html(figure, f"plot{number}")) for number, (title, figure) in enumerate(titled) if figure]
    return environment.get_template("template.html.j2").render(
        runs=runs, facts=_facts(runs), plots=drawn, script=get_plotlyjs() if drawn else "", versions=_versions,
        cells=_cells, differences=_differences(runs, plots),
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
    for value in dict.fromkeys([*_FACTS, *(value for _, run in runs for value in _figures(run))]):
        texts = [_text(value, run.facts.get(value.key)) for _, run in runs]
        if any(texts):
            rows.append((value.label, texts))
    return rows


def _figures(run: Run) -> Sequence[Value]:
    """Return the figures that the model names, or else all those of the result."""
    own = [key for key in run.result.figures if key not in {value.key for value in _FACTS}]
    return run.layout.figures or [Value(key, key.replace("_", " ")) for key in own]


def _cells(run: Run, rank: int) -> list[str]:
    """Return the model's columns in a rank's row."""
    figures = run.result.ranks[rank] if rank < len(run.result.ranks) else {}
    return [_text(value, figures.get(value.key)) for value in run.layout.columns]


def _text(value: Value, figure: object) -> str:
    """Return a figure as the page shows it; "" if there is none, or if it is neither a number nor a text."""
    match figure:
        case bool() | str():
            return str(figure)
        case int() | float() if value.percent:
            return f"{figure:.2%}"
        case int():
            return str(figure) if value.key == "seed" else f"{figure // value.per:,}"
        case float():
            return f"{figure / value.per:.4g}"
    return ""


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.result.versions.items())


def _differences(runs: Sequence[tuple[str, Run]], plots: Iterable[Plot]) -> list[tuple[str, str]]:
    """Return by how much two runs differ: the name of each plot's only curve, and the largest difference."""
    if len(runs) == 1:
        return []
    (_, first), (_, second) = runs
    rows = []
    for value in [plot.curves[0] for plot in plots if len(plot.curves) == 1]:
        largest, common = largest_difference(first, second, value.key)
        if common:
            rows.append((value.label, f"{largest:.2g} in {common} {first.layout.step}s"))
    return rows
