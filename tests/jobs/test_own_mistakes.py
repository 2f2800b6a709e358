"""Mistakes of a first network on two ranks are told: without a word it would train, and its numbers would be wrong."""

import re
from pathlib import Path

import pytest

from jobs.mpirun import alone

PROGRAM = str(Path(__file__).parent / "programs" / "own_mistakes.py")
#: What the line names.
TOLD = {
    "none": "nothing",
    "no sum_gradients": "sum_gradients",
    "another start": "first weights",
    "another rate": "learning rates",
    "steps on rank 0": "weights of GCN differ",
    "another state": "loaded states",
    "a mean of a mean": "reduction='sum'",
    "a mean by hand": "reduction='sum'",
    "a smooth mean": "reduction='sum'",
    "a mean and a penalty": "reduction='sum'",
    "own scale": "a rank's own rows",
    "own class weights": "torch.bincount",
    "own count": "part.num_train",
    "class weights": "nothing",
    "rows of length 1": "nothing",
    "dropout of the features": "nothing",
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_mistake_is_told_on_all_ranks(ranks: int, tmp_path: Path) -> None:
    """One rank has no other weights than its own."""
    job = alone(["-m", "unilaunch", "launch", "-n", str(ranks), "--console", "all", PROGRAM], tmp_path).check()
    for line in ("no loss came from ug.torch.mean", "dropout (p = 0.25) of part.x", "ug.torch.gather(out, part)"):
        assert job.stderr.count(line) == ranks - 1, line
    told = dict(re.findall(r"(\d: [^:]+): (.*)", job.stdout))
    assert len(told) == ranks * len(TOLD)
    for name, words in TOLD.items():
        expected = words if ranks > 1 or "mean" in name else "nothing"
        assert [words for rank in range(ranks) if expected not in told[f"{rank}: {name}"]] == [], told


@pytest.mark.parametrize("launcher", ["unilaunch launch -n 2", "torch.distributed.run --nproc-per-node 2"])
def test_a_model_that_is_not_distributed_is_told(launcher: str, tmp_path: Path) -> None:
    """Below PyG's own error, which does not know of parts."""
    job = alone(["-m", *launcher.split(), PROGRAM, "not distributed"], tmp_path)
    assert job.returncode
    assert "model = ug.torch.distribute(model, part)" in job.console
