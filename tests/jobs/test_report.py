"""`unilaunch report`: one page, of real runs, looked at in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typing_extensions import override

from jobs.mpirun import NUMPY_BACKEND, Launcher, alone
from unilaunch.report.series import POINTS, thin

pytestmark = pytest.mark.xdist_group("report")

LIMIT = 8 << 20  # bytes of a page


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
    def handle_data(self, data: str) -> None:
        self.text += data if len(data) < 10_000 else ""  # plotly's own script


@pytest.fixture(scope="module")
def two_runs(openmpi5: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training on both frameworks."""
    folder = tmp_path_factory.mktemp("runs")
    for backend, ranks in (("torch", 2), ("mindspore", 3)):
        options = ["--epochs", "30", "--data-dir", "data", "--backend", backend, "--output-dir", backend]
        openmpi5.unilaunch(ranks, ["run", *options], folder).check()
    return folder


def _report(folder: Path, *arguments: str) -> Path:
    done = alone(["-m", "unilaunch", "report", *arguments], folder).check()
    return folder / done.stdout.strip()


def test_a_page_has_the_runs_figures_and_needs_nothing(two_runs: Path) -> None:
    result = json.loads((two_runs / "torch" / "result.json").read_text())
    page = _Page(_report(two_runs, "torch"))
    assert page.references == []
    for words in (f"{result['test_accuracy']:.2%}", f"{result['bytes_per_epoch']:,}", "Where the time goes", "torch"):
        assert words in page.text


def test_two_runs_are_laid_over_each_other(two_runs: Path) -> None:
    page = _Page(_report(two_runs, "torch", "--compare", "mindspore", "--output", "both.html"))
    assert "torch and mindspore" in page.text
    assert float(re.findall(r"largest difference of the loss\s*(\S+)", page.text)[0]) < 1e-5


def test_a_browser_draws_it(two_runs: Path) -> None:
    """All plots, and no error."""
    if not (chromium := shutil.which("chromium")):
        pytest.skip("no chromium")
    page = _report(two_runs, "torch", "--compare", "mindspore", "--output", "drawn.html")
    line = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
            "--virtual-time-budget=8000", "--dump-dom", f"file://{page}"]  # fmt: skip
    shown = subprocess.run(line, capture_output=True, text=True, check=True, timeout=100)
    assert len(re.findall(r'<svg class="main-svg"', shown.stdout)) >= 6
    assert len(re.findall(r'class="trace scatter', shown.stdout)) >= 2 + 6 + 2 + 3
    assert len(re.findall(r'class="trace bars', shown.stdout)) == 6
    assert "Uncaught" not in shown.stderr


def test_a_failed_script_is_a_page_too(openmpi5: Launcher, tmp_path: Path) -> None:
    """Its traceback, and nothing that it wrote is taken for HTML."""
    (tmp_path / "script.py").write_text("raise ValueError('<script>alert(1)</script>')\n")
    openmpi5.unilaunch(2, ["run", "script.py"], tmp_path, deadline=60)
    page = _report(tmp_path)
    assert "<script>alert" not in page.read_text()
    assert "ValueError: <script>alert(1)</script>" in _Page(page).text


@pytest.mark.usefixtures("by_numpy")
def test_a_killed_run_shows_its_epochs(openmpi5: Launcher, tmp_path: Path) -> None:
    """As far as it came."""
    variables = {
        "FAULT": f"SIGKILL epoch 1 {tmp_path}",
        "PYTHONPATH": f"{Path(__file__).parents[1] / 'faults' / 'inject'}:{NUMPY_BACKEND}",
    }
    job = openmpi5.unilaunch(2, ["run", "--data-dir", "data"], tmp_path, variables=variables)
    assert job.returncode == 137
    assert "killed by SIGKILL" in _Page(_report(tmp_path)).text


def test_refusals(tmp_path: Path) -> None:
    """No folder of a run, and a damaged file: one line."""
    job = alone(["-m", "unilaunch", "report", "nowhere"], tmp_path)
    assert (job.returncode, len(job.refusals())) == (2, 1)
    (tmp_path / "log_output" / "rank.0").mkdir(parents=True)
    (tmp_path / "log_output" / "result.json").write_text('{"loss": [')
    job = alone(["-m", "unilaunch", "report"], tmp_path)
    assert job.returncode == 2
    assert "result.json: cannot be read" in job.refusals()[0]
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
    text = _Page(_report(tmp_path)).text
    assert f"epochs.jsonl: 1 of {len(lines)} lines make no sense and are left out" in text
    assert "Where the time goes" in text
