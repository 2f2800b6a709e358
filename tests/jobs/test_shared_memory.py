"""Processes of one host exchange rows through memory that they share."""

from pathlib import Path

from jobs.mpirun import Launcher

PROGRAM = str(Path(__file__).parent / "programs" / "shared_halo.py")


def test_rows_of_other_processes_arrive(openmpi5: Launcher, tmp_path: Path) -> None:
    """Of buffers that grow, in 200 exchanges, each with other rows."""
    job = openmpi5.run(3, [PROGRAM], tmp_path).check()
    assert sorted(job.stdout.splitlines()) == [f"rank {rank}: 200 exchanges" for rank in range(3)]
