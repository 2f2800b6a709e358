"""Libraries above torch.distributed find the ranks by themselves, under a bare mpirun and under launch."""

import re
from pathlib import Path

import pytest

from jobs.mpirun import Launcher, unilaunch

PROGRAMS = Path(__file__).parent / "programs"
#: How the script is started, its name, and the batches that each of 2 ranks has.
SCRIPTS = [("launch", "accelerated.py", 4), ("run", "lightened.py", 4), ("launch", "sharded.py", 1)]


@pytest.mark.parametrize(("way", "script", "batches"), SCRIPTS)
def test_a_script_finds_its_ranks(openmpi5: Launcher, way: str, script: str, batches: int, tmp_path: Path) -> None:
    """Two scripts divide 64 rows into batches of 8, and give both ranks one loss; FSDP reads what it has written."""
    line = [str(PROGRAMS / script), str(tmp_path / "checkpoint")]
    job = (
        openmpi5.unilaunch(2, ["run", *line], tmp_path)
        if way == "run"
        else unilaunch(["launch", "-n", "2", *line], tmp_path)
    )
    said = [re.findall(r"(\d)/2 batches (\d+) losses (.*)", job.check().said(rank))[-1] for rank in range(2)]
    assert said == [(str(rank), str(batches), said[0][2]) for rank in range(2)]
    assert "False" not in said[0][2]
