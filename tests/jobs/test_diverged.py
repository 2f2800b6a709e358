"""A training that leaves the finite numbers: never a success, and no JSON holds NaN or Infinity."""

import re
from pathlib import Path

import pytest

from jobs.mpirun import NUMPY, Finished, Launcher


def _diverged(job: Finished, *words: str) -> None:
    """Check that *job* was ended by one line that has all *words*, and that its JSON has finite numbers only."""
    assert job.returncode == 1, job.console[-3000:]
    (line,) = job.refusals()
    for word in (*words, "not a finite number", "--lr 1e+"):
        assert word in line
    assert "Traceback" not in job.console
    assert "Warning" not in job.console
    assert not (job.output / "result.json").exists()
    for path in [*job.output.rglob("*.json"), *job.output.rglob("*.jsonl")]:
        assert not re.search(r"\b(NaN|Infinity)\b", path.read_text())
    for rank in range(2):
        assert (job.failure(rank)["error"], job.failure(rank)["exit_code"]) == ("DivergedError", 1)
        assert line in job.said(rank, "stderr")


@pytest.mark.parametrize(("backend", "lr", "epochs", "trained", "words"), [
    ("numpy", "1e30", "200", 1, ["epoch 2: the loss of all ranks is nan"]),
    ("torch", "1e30", "1", 0, ["epoch 1: the loss of the evaluation is"]),
    ("numpy", "1e300", "1", 0, ["epoch 1: the largest weight is"]),
], ids=["loss", "evaluation", "weights"])  # fmt: skip
def test_a_diverged_training_fails(
    openmpi5: Launcher, backend: str, lr: str, epochs: str, trained: int, words: list[str], tmp_path: Path
) -> None:
    """One line with the epoch and the likely cause, exit code 1 on every rank, and no checkpoint after it.

    That MindSpore's loss tells of it: tests/models/gcn/test_divergence.py.
    """
    arguments = ["run", "--data-dir", "data", "--backend", backend, "--epochs", epochs, "--lr", lr]
    job = openmpi5.unilaunch(2, [*arguments, "--checkpoint-every", "1", "--dropout", "0"], tmp_path, variables=NUMPY)
    _diverged(job, *words)
    assert len(list((job.output / "checkpoints").glob("epoch-*"))) == trained


@pytest.mark.usefixtures("by_numpy")
def test_launch_does_not_start_it_again(openmpi5: Launcher, tmp_path: Path) -> None:
    """It would come out alike; and the report is the one line."""
    job = openmpi5.launch(2, ["--max-restarts", "2", "--data-dir", "data", "--lr", "1e30"], tmp_path)
    _diverged(job, "epoch 2: the loss of all ranks is nan")
