"""What is prepared for the day with a GPU, as far as it goes without one: refusals in a line, figures that are kept."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import create_autospec

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_figures_are_appended_as_they_come_and_make_the_table_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a way that was ended in the second round, the table has the first round; of one that never ran, a word."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu

    file, table = tmp_path / "figures.jsonl", tmp_path / "gpu.md"
    slow = {"seconds_per_epoch": 1.0, "peak_memory_bytes": 1 << 30, "loss": [2.0, 1.0]}
    fast = {**slow, "seconds_per_epoch": 0.25, "peak_memory_bytes": 1 << 29}
    ended = [slow, fast, fast, slow, fast]  # the second round lacks bfloat16
    monkeypatch.setattr(gpu, "_figures", create_autospec(gpu._figures, side_effect=ended))
    with pytest.raises(StopIteration):
        gpu.measure(gpu.Case(Path("small.npz"), "gcn", "0.5"), "cuda", 2, file)
    own = {"graph": "small.npz", "kind": "gat", "dropout": "0", "way": "PyG", "device": "cuda"}
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"piece": "3 small graph", "code": "124"}) + "\n" + json.dumps(own | slow) + "\n")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--read", str(file), "--table", str(table)])
    assert gpu.main() == 0
    assert "kept: small gcn dropout 0.5 / PyG, seconds_per_epoch 0.25 <= 0.5" in capsys.readouterr().out
    assert table.read_text(encoding="utf-8").splitlines()[2:] == [
        "| small | gcn | 0.5 | PyG | 1.0000 | 1.000 | 1024 | 1.000 |",
        "| small | gcn | 0.5 | float32 | 0.2500 | 0.250 | 512 | 0.500 |",
        "| small | gcn | 0.5 | bfloat16 | 0.2500 | 0.250 | 512 | 0.500 |",
        "| small | gat | 0 | PyG | 1.0000 | 1.000 | 1024 | 1.000 |",
        "| small | gat | 0 | distribute | not measured | | | |",
    ]


def test_jobs_without_a_gpu_are_refused_in_a_line(tmp_path: Path) -> None:
    line = [sys.executable, str(BENCHMARKS / "gpu_jobs.py"), "start"]
    environ = {**os.environ, "PATH": str(tmp_path)}  # noqa: TID251  (no nvidia-smi)
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nvidia-smi shows no GPU here" in done.stderr


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("out of memory", "allocate memory"),
        ("no visible device", "no cuda device is visible"),
        ("SIGKILL in a kernel", "SIGKILL"),
    ],
)
def test_a_job_that_breaks_is_named_and_ended(
    name: str, ending: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The jobs that will break on a GPU, on the CPU."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_jobs

    monkeypatch.setattr(sys, "argv", ["gpu_jobs.py", "break", "--device", "cpu", "--only", name])
    assert gpu_jobs.main() == 0
    (figures,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert figures["kept"]
    assert ending in figures["said"]


def test_jobs_that_are_ended_leave_no_process(tmp_path: Path) -> None:
    """A kernel that still ran would disturb what is measured next."""
    line = [
        sys.executable,
        str(BENCHMARKS / "gpu_jobs.py"),
        "break",
        "--device",
        "cpu",
        "--only",
        "SIGKILL in a kernel",
    ]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}  # noqa: TID251
    with subprocess.Popen(line, env=environ, stdout=subprocess.PIPE, text=True) as started:
        ends = time.monotonic() + 60
        while not (rank := _process_of(tmp_path)) and time.monotonic() < ends:
            time.sleep(0.02)
        started.terminate()
        assert started.wait(60) in {143, 0}  # 0: the job had ended before
    while Path(f"/proc/{rank}").exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert rank
    assert not Path(f"/proc/{rank}").exists()


def _process_of(folder: Path) -> str | None:
    """Return the process id that the rank has printed, if it has."""
    said = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*/said"))
    found = re.search(r"process (\d+)\n", said)
    return found[1] if found else None
