"""`unilaunch report`: one page, of real runs, looked at in a real browser."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from jobs.mpirun import NUMPY, Launcher, unilaunch
from unilaunch import __version__
from unilaunch.look.drawing import POINTS, thin

pytestmark = pytest.mark.xdist_group("report")


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


def _page(folder: Path, *arguments: str) -> tuple[Path, str]:
    """Make a page; return it and what it says. It is small, and refers to nothing."""
    page = folder / unilaunch(["report", *arguments], folder).check().stdout.strip()
    html = page.read_text()
    assert len(html) < 1 << 20
    assert not re.search(r"<[^>]* (src|href)=", html)
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)
    return page, " ".join(unescape(text).split())


def test_a_page_of_two_runs_in_a_browser(two_runs: Path) -> None:
    """It has their figures; a browser draws the curves of both over each other, without an error."""
    result = json.loads((two_runs / "torch" / "result.json").read_text())
    page, text = _page(two_runs, "torch", "--compare", "numpy", "--output", "both.html")
    for words in (f"{result['test_accuracy']:.2%}", f"{result['bytes_per_epoch']:,}", "Where the time goes"):
        assert words in text
    assert float(re.findall(r"largest difference of the loss (\S+)", text)[0]) < 1e-5
    if not (chromium := shutil.which("chromium")):
        pytest.skip("no chromium")
    line = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    shown = subprocess.run([*line, f"file://{page}"], capture_output=True, text=True, check=True)
    assert "Uncaught" not in shown.stderr
    charts = re.findall(r'class="chart".*?</svg>', shown.stdout, re.DOTALL)
    assert len(charts) >= 2 + 2 * 3  # loss and accuracy; epochs, memory and output of each run
    assert charts[0].count("<path") == 2


def test_a_page_of_a_script_says_what_was_run_and_what_it_used(openmpi5: Launcher, tmp_path: Path) -> None:
    """Command, versions, options; memory, processor and output over time; its last lines."""
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
    _, text = _page(tmp_path)
    for words in (
        "state finished", "script.py -- '--api-key=***' 'a b'", "(2 ranks)", f"unilaunch {__version__}",
        "Memory of each rank", "Processor of each rank", "Output of each rank", "step 23",
    ):  # fmt: skip
        assert words in text
    assert re.search(r"duration ([2-9]|\d\d)\.\d s", text)


def test_a_failed_script_is_a_page_too(openmpi5: Launcher, tmp_path: Path) -> None:
    """Its traceback, and nothing that it wrote is taken for HTML."""
    (tmp_path / "script.py").write_text("raise ValueError('<script>alert(1)</script>')\n")
    openmpi5.unilaunch(2, ["run", "script.py"], tmp_path)
    page, text = _page(tmp_path)
    assert "<script>alert" not in page.read_text()
    assert "ValueError: <script>alert(1)</script>" in text


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """No folder of a run, and a damaged file: one line, and no page."""
    assert "nowhere" in unilaunch(["report", "nowhere"], tmp_path).refusal()
    (tmp_path / "log_output" / "rank.0").mkdir(parents=True)
    (tmp_path / "log_output" / "result.json").write_text('{"loss": [')
    assert "result.json: cannot be read" in unilaunch(["report"], tmp_path).refusal()
    assert not (tmp_path / "log_output" / "report.html").exists()


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
    text = _page(tmp_path)[1]
    assert f"epochs.jsonl: 1 of {len(lines)} lines are not valid" in text
    assert "Where the time goes" in text
