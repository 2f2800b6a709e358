"""A batch file whose names and values need quoting, really submitted; the GCN's are in test_slurm.py."""

from pathlib import Path

import pytest

from jobs.mpirun import alone, finish
from jobs.slurm import lacking, slurm_cluster

PROGRAM = "import os, sys\nprint(os.environ['SAID'], sys.argv[1:], os.environ['RANK'])\n"


def test_a_batch_file_with_spaces_in_it_is_submitted(tmp_path: Path) -> None:
    """In the script's name, in its arguments and in a variable; each job of the array has its own output and folder."""
    if missing := lacking():
        pytest.skip(f"no Slurm can be started here: this machine lacks {missing}")
    (tmp_path / "my job.py").write_text(PROGRAM)
    options = ["-n", "2", "-x", "SAID=a b;c", "--console", "all", "--emit", "sbatch", "--array", "0-1", "--time", "5"]
    options += ["--partition", "main", "--account", "me", "--cpus-per-task", "1", "--sbatch", '--comment="no 1"']
    line = ["-m", "unilaunch", "launch", *options, "my job.py", "--", "$HOME", "it's"]
    (tmp_path / "job.sh").write_text(alone(line, tmp_path).check().stdout)
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm") as environ:
        finish(["sbatch", "--wait", "job.sh"], tmp_path, dict(environ)).check()
    for index in range(2):
        (said,) = tmp_path.glob(f"unilaunch-my-job.py-*_{index}.out")
        assert sorted(said.read_text().splitlines()) == [f"""a b;c ['$HOME', "it's"] {rank}""" for rank in range(2)]
        (folder,) = tmp_path.glob(f"log_output/*-{index}")
        assert (folder / "rank.1" / "stdout").exists()
