"""Libraries above torch.distributed find the ranks by themselves, under a bare mpirun and under launch."""

import re
from pathlib import Path

import pytest

from jobs.mpirun import Launcher, alone

PROGRAMS = Path(__file__).parent / "programs"
#: How the script is started, its name, and the batches that each of 2 ranks has.
SCRIPTS = [("launch", "accelerated.py", 4), ("run", "lightened.py", 4), ("launch", "sharded.py", 1)]


@pytest.mark.parametrize(("way", "script", "batches"), SCRIPTS)
def test_a_script_finds_its_ranks(openmpi5: Launcher, way: str, script: str, batches: int, tmp_path: Path) -> None:
    """Two scripts divide 64 rows into batches of 8, and give both ranks one loss; FSDP reads what it has written."""
    line = [str(PROGRAMS / script), str(tmp_path / "checkpoint")]
    options = ["-n", "2", "--mpirun", str(openmpi5.path), "--allow-run-as-root", "--oversubscribe"]
    started = ["-m", "unilaunch", "launch", *options, *line]
    job = openmpi5.unilaunch(2, ["run", *line], tmp_path) if way == "run" else alone(started, tmp_path)
    logs = [(job.check().output / f"rank.{rank}" / "stdout").read_text() for rank in range(2)]
    said = [re.findall(r"(\d)/2 batches (\d+) losses (.*)", log)[-1] for log in logs]
    assert said == [(str(rank), str(batches), said[0][2]) for rank in range(2)]
    assert "False" not in said[0][2]
