"""Ranks that call different collectives: a job ends within seconds, in one line that names both."""

from pathlib import Path

import numpy as np
import pytest

import unilaunch_graph as ug
from jobs.mpirun import Launcher, unilaunch

PROGRAM = str(Path(__file__).parent / "programs" / "mixed_calls.py")
FETCHES = str(Path(__file__).parent / "programs" / "unequal_fetches.py")
STRUCTURES = str(Path(__file__).parent / "programs" / "unequal_structure.py")


def test_over_mpi_each_pair_is_told_and_large_messages_travel_in_pieces(openmpi5: Launcher, tmp_path: Path) -> None:
    """Without the word in each message a sum of 1 and a mean of 1 would add up, and 3 numbers would fit into 6."""
    job = openmpi5.run(2, [PROGRAM], tmp_path).check()
    assert sorted(job.stdout.splitlines()) == [f"rank {rank}: 69 errors" for rank in range(2)]


@pytest.mark.parametrize(("start", "first", "second"), [
    ("direct", "sum_ranks", "halo"), ("mpirun", "sum_ranks", "mean"), ("direct", "nothing", "barrier"),
])  # fmt: skip
def test_a_job_ends_and_names_both(start: str, first: str, second: str, tmp_path: Path) -> None:
    """Where one waits for a message that the other never sends, the monitor compares what they have called."""
    job = unilaunch(["launch", "-n", "2", "--launcher", start, PROGRAM, first, second], tmp_path)
    assert job.returncode == 1
    other = "the end of its program" if first == "nothing" else first
    assert f"rank 0 is at {other} (" in job.console
    assert f"rank 1 is at {second} (" in job.console
    assert job.seconds < 60


def test_what_no_message_says_is_told_at_the_end(tmp_path: Path) -> None:
    """A sum of one rank was another's mean, between devices, long ago: the job has not ended well."""
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", PROGRAM, "unsaid"], tmp_path)
    assert job.returncode == 1
    assert "different collectives" in job.console


@pytest.mark.parametrize(
    ("backend", "start"), [("torch", "mpirun"), pytest.param("mindspore", "direct", marks=pytest.mark.mindspore)]
)
def test_unequal_numbers_of_batches(backend: str, start: str, tmp_path: Path) -> None:
    """DGL's issue 3538: it hangs there. The line has the names of what the script has called."""
    _make_ring(tmp_path)
    job = unilaunch(["launch", "-n", "2", "--launcher", start, FETCHES, backend, "ring"], tmp_path)
    assert job.returncode == 1
    assert "rank 0 is at fetch (" in job.console
    assert "rank 1 is at sum_ranks (" in job.console


def test_a_model_that_one_rank_calls_with_another_structure(tmp_path: Path) -> None:
    """That rank alone checks its call, and asks the others for their verdicts."""
    _make_ring(tmp_path)
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", STRUCTURES, "ring"], tmp_path)
    assert job.returncode == 1
    assert "rank 1 is at check (" in job.console
    assert "rank 0 is at halo (" in job.console


def _make_ring(folder: Path) -> None:
    nodes = np.arange(40)
    ends = np.stack((np.tile(nodes, 2), np.concatenate((np.roll(nodes, 1), np.roll(nodes, 2)))))
    ug.from_edges(ends, folder / "ring", x=np.ones((40, 3), np.float32), y=nodes % 2)
