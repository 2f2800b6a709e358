"""`unilaunch report`: one page, of real runs, looked at in a real browser."""

import json
import re
import shutil
import subprocess
from datetime import date
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from jobs.mpirun import NUMPY, Launcher, unilaunch
from unilaunch import __version__
from unilaunch.look.drawing import POINTS, thin

pytestmark = pytest.mark.xdist_group("report")

LIMIT = 1 << 20  # bytes of a page


class _Page(HTMLParser):
    """What a page refers to, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.references: list[str] = []
        self.text = ""
        assert path.stat().st_size < LIMIT
        self.feed(path.read_text())

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in {"src", "href"}]

    @override
    def handle_endtag(self, tag: str) -> None:
        self.text += " "

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def two_runs(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training on two backends."""
    folder = tmp_path_factory.mktemp("runs")
    for backend in ("torch", "numpy"):
        options = ["--epochs", "30", "--data-dir", "data", "--backend", backend, "--output-dir", backend]
        usage = folder / backend / "rank.0" / "usage.jsonl"
        for _ in range(3):  # an agent that is held for a second measures no memory while the ranks live
            openmpi5.unilaunch(2, ["run", *options], folder, variables=NUMPY).check()
            if '"memory"' in usage.read_text():
                break
    return folder


def _report(folder: Path, *arguments: str) -> Path:
    return folder / unilaunch(["report", *arguments], folder).check().stdout.strip()


def test_a_page_has_the_runs_figures_and_needs_nothing(two_runs: Path) -> None:
    """Two runs are laid over each other."""
    result = json.loads((two_runs / "torch" / "result.json").read_text())
    page = _Page(_report(two_runs, "torch"))
    assert page.references == []
    for words in (f"{result['test_accuracy']:.2%}", f"{result['bytes_per_epoch']:,}", "Where the time goes"):
        assert words in page.text
    both = _Page(_report(two_runs, "torch", "--compare", "numpy", "--output", "both.html")).text
    assert float(re.findall(r"largest difference of the loss\s*(\S+)", both)[0]) < 1e-5


_PROBE = """
<script>
const box = element => { const at = element.getBoundingClientRect(); return [at.left, at.top, at.right, at.bottom] }
const boxes = (inside, what) => [...inside.querySelectorAll(what)].map(box)
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, area = page.querySelector(".area"), [left, top, right] = box(area)
    area.dispatchEvent(new (frame.contentWindow.PointerEvent)("pointermove", {clientX: right, clientY: top + 5}))
    return {
      width: frame.clientWidth, needed: page.documentElement.scrollWidth,
      parts: boxes(page, "section, section > table, .scroll, pre, dl"),
      tables: boxes(page, "table"),
      values: page.querySelector(".values").textContent,
      charts: [...page.querySelectorAll(".chart")].map(chart => ({
        area: box(chart.querySelector(".area")), paths: boxes(chart, "path"), x: boxes(chart, ".x span"),
        names: [...chart.querySelectorAll(".names span")].map(span => {
          const range = page.createRange(); range.selectNodeContents(span); return box(range) }),
      })),
    }
  })
  document.body.innerHTML = ""
  document.title = JSON.stringify(seen)
})
</script>
"""


def _in_a_browser(page: Path) -> list[dict[str, Any]]:
    """Load a page in frames of three widths, and as it is printed on A4; return the boxes of what is drawn."""
    if not (chromium := shutil.which("chromium")):
        pytest.skip("no chromium")
    text = page.read_text()
    printed = text.replace("@media print", "@media all")
    assert printed != text
    frames = "".join(
        f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{escape(each)}"></iframe>'
        for each, width in ((text, 400), (text, 900), (text, 1600), (printed, 718))
    )
    whole = page.with_name("frames.html")
    whole.write_text(f"<!doctype html><meta charset=utf-8>{_PROBE}<body>{frames}")
    line = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom",
            f"file://{whole}"]  # fmt: skip
    shown = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "Uncaught" not in shown.stderr
    frames_seen: list[dict[str, Any]] = json.loads(unescape(re.findall("<title>(.*?)</title>", shown.stdout)[0]))
    return frames_seen


def test_a_browser_draws_it_right_at_load_at_every_width_and_in_print(two_runs: Path) -> None:
    """No curve leaves its chart, no name is over a curve or over another name, nothing is wider than the page."""
    page = _report(two_runs, "torch", "--compare", "numpy", "--output", "drawn.html")
    frames = _in_a_browser(page)
    assert [frame["width"] for frame in frames] == [400, 900, 1600, 718]
    for frame in frames:
        assert frame["needed"] <= frame["width"]
        whole = [
            *frame["parts"],
            *(frame["tables"] if frame is frames[-1] else []),
        ]  # on paper no table can be scrolled
        assert all(left >= 0 and right <= frame["width"] for left, _, right, _ in whole)
        assert len(frame["charts"]) >= 2 + 2 * 3  # loss and accuracy; epochs, memory and output of each run
        assert re.fullmatch(r"30: torch [0-9.]+, numpy [0-9.]+", frame["values"])
        for chart in frame["charts"]:
            left, top, right, bottom = chart["area"]
            assert right - left > 0.4 * min(frame["width"], 400)
            assert all(x0 > left - 2 and x1 < right + 2 for x0, _, x1, _ in chart["paths"])
            assert all(y0 > top - 2 and y1 < bottom + 2 for _, y0, _, y1 in chart["paths"])
            assert all(name[0] >= right for name in chart["names"])
            assert all(above[3] <= below[1] + 1 for above, below in pairwise(chart["names"]))
            assert all(before[2] <= after[0] for before, after in pairwise(chart["x"]))
        loss = frame["charts"][0]
        assert max(x1 for _, _, x1, _ in loss["paths"]) == pytest.approx(loss["area"][2], abs=2)  # its last epoch


def test_a_page_of_a_script_says_what_was_run_and_what_it_used(openmpi5: Launcher, tmp_path: Path) -> None:
    """Command, start, hosts, versions, options; memory, processor and output over time; its last lines."""
    (tmp_path / "script.py").write_text(
        "import json, os, time\nfrom pathlib import Path\nx = b'x' * 60_000_000\n"
        "for i in range(24): print('step', i, flush=True); time.sleep(0.09)\n"
        "usage, until = Path('log_output', f\"rank.{os.environ['RANK']}\", 'usage.jsonl'), time.monotonic() + 50\n"
        "def enough(rows): return len(rows) > 1 and json.loads(rows[-1])['memory'] > 60e6\n"
        "while not (usage.exists() and enough(usage.read_text().splitlines())) and time.monotonic() < until:\n"
        "    time.sleep(0.05)\n"
    )
    job = openmpi5.unilaunch(2, ["run", "script.py", "--", "--api-key=hidden", "a b"], tmp_path).check()
    rows = [json.loads(line) for line in (job.output / "rank.1" / "usage.jsonl").read_text().splitlines()]
    assert 60e6 < max(row["memory"] for row in rows[:-1]) <= rows[-1]["peak"] < 1e9
    assert 0 < rows[-1]["cpu"] < 10
    assert 3 <= len(rows) <= rows[-1]["time"] - rows[0]["time"] + 5  # about one a second
    page = _report(tmp_path)
    assert page.stat().st_size < 60_000
    text = " ".join(_Page(page).text.split())
    for words in (
        "state finished", f"start {date.today().year}", "script.py -- '--api-key=***' 'a b'", "(2 ranks)",  # noqa: DTZ011
        f"unilaunch {__version__}", "Memory of each rank", "Processor of each rank", "Output of each rank", "step 23",
    ):  # fmt: skip
        assert words in text
    assert re.search(r"duration ([2-9]|\d\d)\.\d s", text)


def test_a_failed_script_is_a_page_too(openmpi5: Launcher, tmp_path: Path) -> None:
    """Its traceback, and nothing that it wrote is taken for HTML."""
    (tmp_path / "script.py").write_text("raise ValueError('<script>alert(1)</script>')\n")
    openmpi5.unilaunch(2, ["run", "script.py"], tmp_path)
    page = _report(tmp_path)
    assert "<script>alert" not in page.read_text()
    assert "ValueError: <script>alert(1)</script>" in _Page(page).text


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """No folder of a run, and a damaged file: one line, and no page."""

    def refused(*arguments: str) -> str:
        return unilaunch(["report", *arguments], tmp_path).refusal()

    assert "nowhere" in refused("nowhere")
    output = tmp_path / "log_output"
    (output / "rank.0").mkdir(parents=True)
    (output / "result.json").write_text('{"loss": [')
    assert "result.json: cannot be read" in refused()
    (output / "result.json").unlink()
    (output / "rank.0" / "times").mkdir()
    assert "log_output/rank.0/times: cannot be read" in refused()
    assert not (output / "report.html").exists()


def test_long_curves_keep_their_peaks() -> None:
    y = [0.0] * 100_000
    y[77_777], y[12_345] = 5.0, -3.0
    x, thinned = thin(list(range(len(y))), y)
    assert len(x) == len(thinned) <= POINTS + 2
    assert (max(thinned), min(thinned), x == sorted(x)) == (5.0, -3.0, True)


def test_a_damaged_line_costs_only_itself(two_runs: Path, tmp_path: Path) -> None:
    """And is named; a last line that is not whole is none."""
    shutil.copytree(two_runs / "torch", tmp_path / "log_output")
    epochs = tmp_path / "log_output" / "rank.0" / "epochs.jsonl"
    lines = epochs.read_text().splitlines()
    epochs.write_text("\n".join([*lines[:5], '{"epoch": "x"}', *lines[6:], '{"epoch": 3']))
    text = _Page(_report(tmp_path)).text
    assert f"epochs.jsonl: 1 of {len(lines)} lines are not valid and are left out" in text
    assert "Where the time goes" in text
