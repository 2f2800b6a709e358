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


def _page(folder: Path, *arguments: str) -> tuple[Path, str]:
    """Make a page; return it and what it says. It is small, and refers to nothing."""
    page = folder / unilaunch(["report", *arguments], folder).check().stdout.strip()
    html = page.read_text()
    assert len(html) < 1 << 20
    assert not re.search(r"<[^>]* (src|href)=", html)
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)
    return page, " ".join(unescape(text).split())


def test_a_page_of_two_runs_in_a_browser(openmpi5: Launcher, tmp_path: Path) -> None:
    """The same training on two backends: figures; a browser draws the curves of both over each other."""
    for backend in ("torch", "numpy"):
        options = ["--epochs", "30", "--data-dir", "data", "--backend", backend, "--output-dir", backend]
        usage = tmp_path / backend / "rank.0" / "usage.jsonl"
        for _ in range(3):  # an agent that is held for a second measures no memory while the ranks live
            openmpi5.unilaunch(2, ["run", *options], tmp_path, variables=NUMPY).check()
            if '"memory"' in usage.read_text():
                break
    result = json.loads((tmp_path / "torch" / "result.json").read_text())
    page, text = _page(tmp_path, "torch", "--compare", "numpy", "--output", "both.html")
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
        "import os, time\nfrom pathlib import Path\nx = b'x' * 60_000_000\n"
        "usage, step = Path('log_output', f\"rank.{os.environ['RANK']}\", 'usage.jsonl'), 0\n"
        "while step < 24 or usage.read_text().count('\\n') < 3:\n"
        "    print('step', step, flush=True); time.sleep(0.09); step += 1\n"
    )
    job = openmpi5.unilaunch(2, ["run", "script.py", "--", "--api-key=hidden", "a b"], tmp_path).check()
    rows = [json.loads(line) for line in (job.output / "rank.1" / "usage.jsonl").read_text().splitlines()]
    assert 60e6 < max(row["memory"] for row in rows[:-1]) <= rows[-1]["peak"] < 1e9
    assert 0 < rows[-1]["cpu"] < 10
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
