"""`unilaunch report`: one page about a run, or about two; jinja2 escapes all text that ranks have written."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import ClassVar, NamedTuple

from pydantic import Field

from unilaunch.errors import InputError, PluginError
from unilaunch.folder.files import write_text, write_users
from unilaunch.interfaces.command import Command
from unilaunch.interfaces.report_layout import Plot, Value
from unilaunch.look.charts import largest_difference, plot_chart, rank_charts, time_bars
from unilaunch.look.lines import without_escapes
from unilaunch.look.run_folder import RankRun, Run
from unilaunch.overriding import override
from unilaunch.spec.run_spec import Spec

#: The facts that the page shows for every run.
_FACTS = (
    Value("model", "model"), Value("backend", "framework"), Value("device", "device"), Value("world_size", "ranks"),
    Value("launcher", "launcher"), Value("threads", "threads per rank"), Value("seed", "seed"),
)  # fmt: skip
_MOST_ENDS = 8  # groups of ranks with the same last lines


class ReportSpec(Spec):
    """Which run to show, and where to write the page."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder of a run")
    compare: Path | None = Field(default=None, description="the output folder of another run, drawn over it")
    output: Path | None = Field(default=None, description="the page; default: report.html in the folder")


class ReportCommand(Command):
    """Write one self-contained page about a run, or about two."""

    help = "write a page about a run: curves, times, hosts, and the failure if any"
    examples = (
        "unilaunch report",
        "unilaunch report torch_output --compare mindspore_output --output both.html",
    )
    spec = ReportSpec

    @override
    def run(self, options: ReportSpec) -> int:
        page = make_page([Run(folder) for folder in (options.folder, options.compare) if folder])
        path = options.output or options.folder / "report.html"
        try:
            (write_users if options.output else write_text)(path, page)
        except OSError as error:
            raise InputError(f"--output {path}: cannot be written: {error.strerror}") from None
        sys.stdout.write(f"{path}\n")
        return 0


def make_page(runs: Sequence[Run]) -> str:
    """Return the HTML of a page.

    Args:
        runs: One run, or two that are shown together.

    Raises:
        PluginError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise PluginError(f"unilaunch report: {error}: pip install 'unilaunch[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain"] = without_escapes
    plots = list(dict.fromkeys(plot for run in runs for plot in run.layout.plots))
    charts = [chart for plot in plots if (chart := plot_chart(plot, runs))]
    return environment.get_template("report.html.j2").render(
        runs=runs, about=_about(runs), facts=_facts(runs), options=_options(runs), bars=time_bars(runs),
        drawings=[chart.draw() for chart in charts], rank_drawings=[chart.draw() for chart in rank_charts(runs)],
        cells=_cells, used=_used, ends=_ends, differences=_differences(runs, plots),
    )  # fmt: skip


def _about(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the rows about the runs: a name, and each run's value."""
    rows = {
        "state": _state, "start": _start, "duration": _duration, "command": _command, "hosts": _hosts,
        "versions": _versions,
    }  # fmt: skip
    texts_of = {name: [text(run) for run in runs] for name, text in rows.items()}
    return [(name, texts) for name, texts in texts_of.items() if any(texts)]


def _state(run: Run) -> str:
    if run.report:
        return "failed"
    codes = {rank.exit_code for rank in run.ranks}
    if codes == {0}:
        return "finished"
    if None not in codes:
        return f"ended, exit code {', '.join(map(str, sorted(filter(None, codes))))}"
    return "no rank has said that it ended" if codes == {None} else "some ranks have not said that they ended"


def _start(run: Run) -> str:
    if run.began is None:
        return ""
    try:
        return datetime.fromtimestamp(run.began).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (ValueError, OverflowError, OSError):  # a damaged file
        return ""


def _duration(run: Run) -> str:
    return _span(run.seconds) if run.seconds else ""


def _span(seconds: float) -> str:
    """Return a duration as text: "4.2 s", "3 min 5 s", "2 h 7 min"."""
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.versions.items())


def _command(run: Run) -> str:
    """Return the command line without the interpreter in front of our own script."""
    first, *rest = run.command or [""]
    if rest and PurePath(rest[0]).name == "unilaunch":
        first, *rest = rest
    return shlex.join([PurePath(first).name, *rest]) if first else ""


def _hosts(run: Run) -> str:
    hosts = Counter(rank.host for rank in run.ranks)
    return ", ".join(f"{host} ({number} rank{'s' * (number > 1)})" for host, number in hosts.items())


class Option(NamedTuple):
    """An option, and its value in each run."""

    name: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        """The runs have different values."""
        return len(set(self.values)) > 1


def _options(runs: Sequence[Run]) -> list[Option]:
    """Return every option; of two runs first those that differ."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    options = [Option(name, [run.options.get(name, "") for run in runs]) for name in names]
    return sorted(options, key=lambda option: not option.differs)


def _facts(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the rows of the table: a name, and each run's value."""
    rows = []
    for value in dict.fromkeys([*_FACTS, *(value for run in runs for value in _figures(run))]):
        texts = [_text(value, run.facts.get(value.key)) for run in runs]
        if any(texts):
            rows.append((value.label, texts))
    return rows


def _figures(run: Run) -> Sequence[Value]:
    """Return the figures that the model names, or else all figures of the result."""
    own = [key for key in run.result.figures if key not in {value.key for value in _FACTS}]
    return run.layout.figures or [Value(key, key.replace("_", " ")) for key in own]


def _cells(run: Run, rank: int) -> list[str]:
    """Return the model's columns in a rank's row."""
    figures = run.result.ranks[rank] if rank < len(run.result.ranks) else {}
    return [_text(value, figures.get(value.key)) for value in run.layout.columns]


def _used(rank: RankRun) -> tuple[str, str]:
    """Return the processor seconds of a rank, and its peak memory in MB."""
    peak = max((max(row.peak or 0, row.memory or 0) for row in rank.usage), default=0)
    return f"{rank.usage[-1].cpu:.1f}" if rank.usage else "", f"{peak / 1e6:,.0f}" if peak else ""


def _ends(run: Run) -> tuple[list[tuple[str, str]], int]:
    """Return the last lines of the ranks, the same ones together, and how many ranks are left out."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in run.ranks:
        groups.setdefault(tuple(rank.last), []).append(rank.rank)
    written = [(ranks, lines) for lines, ranks in groups.items() if lines]
    shown = [(f"rank {', '.join(map(str, ranks))}", "\n".join(lines)) for ranks, lines in written[:_MOST_ENDS]]
    return shown, sum(len(ranks) for ranks, _ in written[_MOST_ENDS:])


def _text(value: Value, figure: object) -> str:
    """Return a figure as the page shows it; "" if there is none, or if it is neither a number nor a text."""
    match figure:
        case bool() | str():
            return str(figure)
        case int() | float() if value.percent:
            return f"{figure:.2%}"
        case int():
            return str(figure) if value.key == "seed" else f"{(figure + value.per // 2) // value.per:,}"
        case float():
            return f"{figure / value.per:.4g}"
    return ""


def _differences(runs: Sequence[Run], plots: Iterable[Plot]) -> list[tuple[str, str]]:
    """Return by how much two runs differ: the name of each plot's only curve, and the largest difference."""
    if len(runs) == 1:
        return []
    first, second = runs
    rows = []
    for value in [plot.curves[0] for plot in plots if len(plot.curves) == 1]:
        largest, common = largest_difference(first, second, value.key)
        if common:
            rows.append((value.label, f"{largest:.2g} in {common} {first.layout.step}s"))
    return rows
