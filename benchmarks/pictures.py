"""Draw the pictures of the README: three bar charts and a terminal.

    python benchmarks/pictures.py

The charts show records of benchmarks/results/: run a benchmark, write its record, and draw again. The terminal shows
the failure of docs/tutorial.md, which tests/jobs/test_pages.py compares with a real run. The pictures lie in
docs/drawings/.
"""

import html
import json
import re
import statistics
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DRAWINGS = ROOT / "docs" / "drawings"
STYLE = """<style>
  text { font: 14px system-ui, sans-serif; fill: #1f2933; dominant-baseline: middle }
  .title { font-weight: 600 } .small { font-size: 12px } .end { text-anchor: end }
  .ours { fill: #2f7a4f } .theirs { fill: #9aa5b1 }
  @media (prefers-color-scheme: dark) { text { fill: #e4e7eb } .ours { fill: #6cc394 } .theirs { fill: #52606d } }
</style>"""
WIDTH, NAMES, BAR, ROW, TOP = 500, 200, 220, 26, 44  # pixels: a phone shows all; BAR is the length of the longest bar
COLUMNS = 68  # of the terminal


class Bar(NamedTuple):
    """One bar.

    Attributes:
        name: What stands at its left.
        value: Its length.
        text: What stands at its right.
        is_ours: It is unilaunch's.
    """

    name: str
    value: float
    text: str
    is_ours: bool


def pictures() -> dict[str, str]:
    """Return the SVG of each picture by its file's name."""
    charts = {"chart-start.svg": _start(), "chart-epoch.svg": _epoch(), "chart-step.svg": _step()}
    return {**charts, "failure.svg": _failure()}


def _failure() -> str:
    """Return a terminal with the tutorial's job that fails; what unilaunch says is bright."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").partition("## 3. A failure\n")[2]
    (text,) = re.findall(r"^```console\n(.*?)\n```", page.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    rows = [(line, row) for line in text.splitlines() for row in textwrap.wrap(line, COLUMNS, drop_whitespace=False)]
    y = 50 + 20 * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 {y}" role="img" aria-label="A rank fails">',
        "<title>A rank fails, and the job ends with its reason</title>",
        "<style>text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #9aa5b1; white-space: pre }",
        "  .bright { fill: #f5f7fa } .bar { fill: #3e4c59 } .back { fill: #1f2933 }</style>",
        f'<rect class="back" width="560" height="{y}" rx="8"/><rect class="bar" width="560" height="26" rx="8"/>',
    ]
    for number, (line, row) in enumerate(rows):
        bright = ' class="bright"' if line.startswith(("$", "unilaunch:")) else ""
        shown = html.escape(row.rstrip(), quote=False)
        lines.append(f'<text{bright} x="14" y="{50 + 20 * number}" xml:space="preserve">{shown}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _start() -> str:
    record = _record("launch")
    ratios = record["figures"]["launch / torchrun"]
    bars = [Bar("torchrun", 1, "1", is_ours=False)]
    for ranks, runs in ratios.items():
        value = statistics.median(runs)
        bars.append(Bar(f"launch, {ranks} ranks", value, f"{value:.2f}", is_ours=True))
    return _chart("Start of a PyTorch script: share of torchrun's time", bars, record)


def _epoch() -> str:
    record = _record("epoch")
    seconds = record["figures"]["s/epoch, GCN, dropout 0.5"]
    names = {
        "PyG same": "PyG",
        "DGL same": "DGL",
        "torch": "unilaunch, PyTorch",
        "mindspore": "unilaunch, MindSpore",
        "bfloat16": "unilaunch, bfloat16",
    }
    bars = [
        Bar(name, seconds[row], f"{seconds[row]:.2f} s", is_ours="unilaunch" in name) for row, name in names.items()
    ]
    return _chart("An epoch of the same GCN, dropout 0.5, on 4.5 million edges", bars, record)


def _step() -> str:
    record = _record("own_models")
    bars = []
    for model in ("gat", "sage", "gin"):
        for way, name in (("pyg", "PyG"), ("distribute", "ug.torch.distribute")):
            seconds = record["figures"][model][way]["s/epoch"]
            bars.append(Bar(f"{model.upper()}, {name}", seconds, f"{seconds:.2f} s", is_ours=way != "pyg"))
    return _chart("A step of an unchanged PyG model on 4.5 million edges", bars, record)


def _chart(title: str, bars: list[Bar], record: dict[str, Any]) -> str:
    """Return a chart: a title, the bars, and where the figures come from."""
    height = TOP + ROW * len(bars) + 50
    longest = max(bar.value for bar in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" viewBox="0 0 {WIDTH} {height}" role="img"',
        f'  aria-label="{title}">',
        f"<title>{title}</title>",
        STYLE,
        f'<text class="title" x="10" y="20">{title}</text>',
    ]
    for number, bar in enumerate(bars):
        y = TOP + ROW * number
        width = max(2.0, BAR * bar.value / longest)
        kind = "ours" if bar.is_ours else "theirs"
        lines += [
            f'<text class="end" x="{NAMES - 10}" y="{y + 9}">{bar.name}</text>',
            f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{width:.1f}" height="18" rx="2"/>',
            f'<text x="{NAMES + width + 8:.1f}" y="{y + 9}">{bar.text}</text>',
        ]
    source = f"{record['command'].split()[1]}, {record['date']}"
    lines += [f'<text class="small" x="10" y="{height - 32}">{source}</text>']
    lines += [f'<text class="small" x="10" y="{height - 14}">{record["processor"]}</text>', "</svg>", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for file, text in pictures().items():
        (DRAWINGS / file).write_text(text, encoding="utf-8")
