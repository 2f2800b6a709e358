"""The commands of the README, under both Open MPI versions."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.mpirun import Launcher, alone

#: Words of the summary at the end.
SUMMARY = ("loss", "accuracy", "seconds per epoch", "logs", "log_output/rank.*/")
#: Fields of the result that docs/reference/files.md names.
PROMISED = {
    "backend", "device", "world_size", "dataset", "epochs", "loss", "train_accuracy", "val_accuracy",
    "test_accuracy", "seconds_per_epoch", "compute_seconds", "communication_seconds", "bytes_per_epoch", "versions",
}  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "ranks", "backend"), [("4.1", 4, "torch"), ("5.0", 2, "mindspore")], indirect=["launcher"]
)
def test_mpirun_trains_on_any_number_of_ranks(launcher: Launcher, backend: str, ranks: int, tmp_path: Path) -> None:
    """The tutorial's command line works as it stands, and every rank leaves its log."""
    arguments = ["run", "--backend", backend, "--epochs", "10", "--data-dir", "data"]
    job = launcher.unilaunch(ranks, arguments, tmp_path, options=("--output-filename", "log_output")).check()
    assert (job.result["world_size"], job.result["backend"], len(job.result["loss"])) == (ranks, backend, 10)
    assert job.result["launcher"].startswith("Open MPI")
    assert job.result["loss"][-1] < job.result["loss"][0]
    assert sorted(path.name for path in job.output.glob("rank.*")) == [f"rank.{rank}" for rank in range(ranks)]
    for rank in range(ranks):
        assert f"part {rank}: " in job.said(rank, "stderr")
    assert "accuracy" in job.said(0)
    assert job.stdout.count("accuracy") == 1  # Open MPI 5 writes it to its files only
    assert all(word in job.stdout for word in SUMMARY)
    named = [line.rpartition(" ")[2] for line in job.refusals()]
    assert len(named) == (launcher.version == "5.0")
    assert all("accuracy" in next(tmp_path.glob(f"{pattern}0.out")).read_text() for pattern in named)


def test_a_file_gets_what_mpirun_would_have_shown(openmpi5: Launcher, tmp_path: Path) -> None:
    """In whole lines, with mpirun's own words after them; a script may have an option of mpirun's name."""
    (tmp_path / "script.py").write_text(
        "import os, sys, time\nfrom pathlib import Path\nprint('rank', os.environ['RANK'], *sys.argv[1:])\n"
        "Path('printed.' + os.environ['RANK']).touch()\n"
        "while len(list(Path().glob('printed.*'))) < 2: time.sleep(0.01)\n"  # the first exit ends the other rank
        "sys.exit(7)\n"
    )
    line = [str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    own = [sys.executable, "-m", "unilaunch", "run", "script.py", "--", "--output-filename", "x"]
    for options in ([], ["--output", "dir=log,merge-stderr-to-stdout"]):
        for mark in tmp_path.glob("printed.*"):
            mark.unlink()
        with (tmp_path / "console").open("w") as console:
            done = subprocess.run([*line, *options, *own], cwd=tmp_path, stdout=console, stderr=console, check=False)
        said = (tmp_path / "console").read_text()
        assert done.returncode == 7
        assert [said.count(f"rank {rank} --output-filename x\n") for rank in (0, 1)] == [1, 1], said
        assert "Exit code:    7" in said
        assert ("does not show: log/prterun-" in said) == bool(options)


def test_defaults_end_with_a_readable_summary(openmpi5: Launcher, tmp_path: Path) -> None:
    """Two ranks, no option but where data goes: what a reader looks for, and each promised field."""
    job = openmpi5.unilaunch(2, ["run", "--data-dir", "data"], tmp_path).check()
    assert all(word in job.stdout for word in SUMMARY)
    assert (job.result["backend"], job.result["epochs"]) == ("torch", 200)
    assert job.result["test_accuracy"] > 0.7
    assert set(job.result) >= PROMISED
    seconds = job.result["communication_seconds"] + job.result["compute_seconds"]
    assert seconds == pytest.approx(job.result["seconds_per_epoch"])


@pytest.mark.usefixtures("by_numpy")
def test_second_run_keeps_the_first_ones_logs(openmpi5: Launcher, tmp_path: Path) -> None:
    """Nothing of an earlier run is lost, also when it had more ranks."""
    for ranks in (3, 2):
        openmpi5.unilaunch(ranks, ["run", "--data-dir", "data", "--epochs", "2"], tmp_path).check()
    assert sorted(path.name for path in (tmp_path / "log_output").glob("rank.*")) == ["rank.0", "rank.1"]
    earlier = sorted(path.name for path in (tmp_path / "log_output" / "previous").glob("*/*"))
    assert earlier == ["checkpoints", "rank.0", "rank.1", "rank.2", "result.json", "spec.json"]


@pytest.mark.usefixtures("by_numpy")
def test_one_rank_needs_no_mpi(tmp_path: Path) -> None:
    """Under no launcher the only rank trains where mpi4py cannot even be imported."""
    without = "import sys; sys.modules['mpi4py'] = None; from unilaunch.cli import main; main()"
    job = alone(["-c", without, "run", "--data-dir", "data", "--epochs", "5"], tmp_path).check()
    assert (job.result["world_size"], job.result["launcher"]) == (1, "none")


def test_a_training_imports_no_compiler(tmp_path: Path) -> None:
    """torch.autograd.grad with a gradient of its own would import sympy: 0.6 s of each rank's processor."""
    job = alone(["-X", "importtime", "-m", "unilaunch", "run", "--backend", "torch", "--epochs", "2"], tmp_path).check()
    imported = {line.rpartition("|")[2].strip() for line in job.stderr.splitlines()}
    assert "torch" in imported
    assert not {"sympy", "torch._dynamo", "torch._inductor"} & imported
