"""Bad input: one clear line, exit code 2 on every rank, no traceback, no hang, and nothing is lost."""

import re
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import numpy as np
import pytest

import unilaunch
from jobs.mpirun import BACKEND, NUMPY, Finished, Launcher, finish
from jobs.mpirun import unilaunch as command


def _check_refused(job: Finished, *words: str) -> None:
    """Check that *job* was refused by one line that has all *words*."""
    line = job.refusal()
    assert [word for word in words if word not in line] == []
    assert job.seconds < 55  # a rank that waits in vain for another does so for 60


@pytest.mark.parametrize(("arguments", "words"), [
    (["--num-parts", "3"], ["--num-parts 3", "2 ranks", "mpirun -n 3"]),
    (["--device", "cuda"], ["no cuda device is visible", "CUDA_VISIBLE_DEVICES", "--device cpu"]),
    (["--partition-dir", "/proc/here"], ["/proc/here", "--partition-dir"]),
    (["--checkpoint-dir", "/proc/nope"], ["--checkpoint-dir /proc/nope: cannot be written", "--no-save-model"]),
], ids=lambda value: " ".join(value) if value[0].startswith("-") else "")  # fmt: skip
def test_refused_options(openmpi5: Launcher, arguments: list[str], words: list[str], tmp_path: Path) -> None:
    """What is not allowed is said once, by all ranks, by one on its host, or by rank 0 in a folder."""
    variables = {} if arguments[0] == "--device" else NUMPY | {BACKEND: "numpy"}
    job = openmpi5.unilaunch(2, ["run", "--data-dir", "data", *arguments], tmp_path, variables=variables)
    _check_refused(job, *words)
    assert not [*tmp_path.rglob("result.json"), *tmp_path.rglob("epochs.jsonl")]


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(("line", "words"), [
    ("run --dataset graph.npz --data-dir data --task classes", "the labels of graph.npz are float64"),
    ("run --dataset graph.npz --data-dir data --patience 3", "--patience 3: graph.npz has no validation nodes"),
    ("logs nowhere", "nowhere: no output of ranks"), ("logs --grep (", "--grep (: no regular expression"),
    ("logs --rank one", "--rank one: expected numbers"), ("logs --level LOUD", "--level"),
    ("logs --since yesterday", "--since yesterday: expected 90s"),
    ("logs --rank 2-5", "--rank 2-5: no output of such a rank in log_output"),
])  # fmt: skip
def test_refused_lines(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log_output" / "rank.1").mkdir(parents=True)
    (tmp_path / "log_output" / "rank.1" / "stdout").write_text("1\n")
    graph = {"edge_index": np.array([[0, 1, 2], [1, 2, 3]]), "x": np.eye(4), "y": np.arange(4) / 3}
    masks = {f"{split}_mask": np.full(4, split == "train") for split in ("train", "val", "test")}
    np.savez(tmp_path / "graph.npz", **graph, **masks)
    assert words in command(line.split(), tmp_path).refusal()


@pytest.mark.usefixtures("by_numpy")
def test_refused_partition(openmpi5: Launcher, tmp_path: Path) -> None:
    """What one rank finds in its part, here a flipped bit, ends all ranks, and the partition is left as it is."""
    command(["partition", "--dataset", "sbm", "--num-parts", "2", "--data-dir", "data"], tmp_path).check()
    (path,) = tmp_path.glob("data/partitions/sbm-2-*/part.1/owned.npy")
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 0x40
    path.write_bytes(raw)
    before = {path: path.read_bytes() for path in tmp_path.rglob("partitions/**/*") if path.is_file()}
    _check_refused(openmpi5.unilaunch(2, ["run", "--data-dir", "data"], tmp_path), "part.1/owned.npy", "SHA-256")
    assert {path: path.read_bytes() for path in tmp_path.rglob("partitions/**/*") if path.is_file()} == before


@pytest.mark.timed
def test_many_ranks_refuse_without_a_hang(launcher: Launcher, tmp_path: Path) -> None:
    """16 ranks that all reject their input at start end by themselves; mpirun alone would hang now and then."""
    _check_refused(launcher.unilaunch(16, ["run", "--epochs", "none"], tmp_path), "--epochs")


@pytest.mark.usefixtures("by_numpy")
def test_ranks_without_mpi4py_say_what_to_install(openmpi5: Launcher, tmp_path: Path) -> None:
    """They cannot agree on anything, not even on who speaks: each says it, and none runs alone. One rank needs none."""
    without = "import sys; sys.modules['mpi4py'] = None; from unilaunch.cli import main; main()"
    job = openmpi5.run(2, ["-c", without, "run"], tmp_path)
    assert (job.returncode, {"pip install mpi4py" in line for line in job.refusals()}) == (2, {True})
    alone = finish(
        [sys.executable, "-c", without, "run", "--data-dir", "data", "--epochs", "5"], tmp_path, None
    ).check()
    assert (alone.result["world_size"], alone.result["launcher"]) == (1, "none")


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(("variables", "words"), [
    ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
      "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, ["rank 0 of 4", "unset OMPI_COMM_WORLD_*"]),
    ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2",
      "SLURM_STEP_NODELIST": "vm", "PMI_RANK": "0"}, ["rank 0 of 2", "srun --mpi=none"]),
], ids=["left over in the shell", "srun with another MPI"])  # fmt: skip
def test_variables_that_mpi_does_not_confirm(variables: dict[str, str], words: list[str], tmp_path: Path) -> None:
    """Several ranks by the variables, one by MPI: refused with both numbers, and with the remedy."""
    _check_refused(command(["run"], tmp_path, variables), "rank 0 of 1", *words)


@pytest.mark.usefixtures("by_numpy")
def test_interrupt_is_one_line(tmp_path: Path) -> None:
    """Ctrl-C under no launcher: no traceback, 128 + SIGINT."""
    line = [sys.executable, "-m", "unilaunch", "run", "--data-dir", "data", "--epochs", "1000000"]
    job = finish(["timeout", "--foreground", "--preserve-status", "--signal", "INT", "8", *line], tmp_path, None)
    assert (job.returncode, job.refusals(), "Traceback" in job.console) == (130, ["unilaunch: interrupted"], False)


def test_another_version_of_unilaunch_on_a_rank_is_refused(openmpi5: Launcher, tmp_path: Path) -> None:
    """As where a bare mpirun finds another Python on another host: one line with both, and what to type."""
    other = tmp_path / "other" / "unilaunch"
    copytree(Path(unilaunch.__file__).parent, other, ignore=ignore_patterns("__pycache__"))
    (other / "version.py").write_text('"""Another."""\n__version__ = "0.0.1"\n')
    (tmp_path / "train.py").touch()
    run = [sys.executable, "-m", "unilaunch", "run", "train.py"]
    job = openmpi5.run(1, [*run[1:], ":", "-n", "1", "-x", f"PYTHONPATH={other.parent}", *run], tmp_path)
    _check_refused(job, "rank 1 on", "has unilaunch 0.0.1 and Python", f"mpirun ... {sys.executable} -m unilaunch run")


@pytest.mark.parametrize(("options", "trained", "said"), [
    ("--backend numpy --lr 1e30", 1, "epoch 2: the loss of all ranks is nan"),
    ("--backend torch --lr 1e30 --epochs 1", 0, "epoch 1: the loss of the evaluation is"),
    ("--backend numpy --lr 1e300 --epochs 1", 0, "epoch 1: the largest weight is"),
])  # fmt: skip
def test_a_diverged_training_fails(openmpi5: Launcher, options: str, trained: int, said: str, tmp_path: Path) -> None:
    """One line with the epoch and the likely cause, no restart, no checkpoint after it, and no JSON with NaN."""
    words = ["--data-dir", "data", "--checkpoint-every", "1", "--dropout", "0", "--max-restarts", "2", *options.split()]
    job = openmpi5.launch(2, words, tmp_path, NUMPY)
    (line,) = job.refusals()
    assert [word in line for word in (said, "not a finite number", "--lr 1e+")] == [True] * 3
    assert (job.returncode, re.findall("Traceback|Warning", job.console)) == (1, [])
    assert not [path for path in job.output.rglob("*.json*") if re.search(r"\b(NaN|Infinity)\b", path.read_text())]
    assert [job.failure(rank)["error"] for rank in range(2)] == ["DivergedError"] * 2
    assert len(list(job.output.glob("checkpoints/epoch-*"))) == trained
    assert not (job.output / "result.json").exists()
