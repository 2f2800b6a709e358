"""Bad input: one clear line, exit code 2 on every rank, no traceback, no hang, and nothing is lost."""

import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import unilaunch
from jobs.mpirun import BACKEND, NUMPY, Finished, Launcher, alone
from jobs.mpirun import unilaunch as command
from unilaunch.errors import LauncherError


def _check_refused(job: Finished, *words: str) -> None:
    """Check that *job* was refused by one line that has all *words*."""
    line = job.refusal()
    assert [word for word in words if word not in line] == []
    assert job.seconds < 55  # a rank that waits in vain for another does so for 60


@pytest.mark.parametrize(("arguments", "words"), [
    (["--num-parts", "3"], ["--num-parts 3", "2 ranks", "mpirun -n 3"]),
    (["--device", "cuda"], ["no cuda device is visible", "CUDA_VISIBLE_DEVICES", "--device cpu"]),
    (["--partition-dir", "/proc/here"], ["/proc/here", "--partition-dir"]),
], ids=lambda value: " ".join(value) if value[0].startswith("-") else "")  # fmt: skip
def test_refused_options(openmpi5: Launcher, arguments: list[str], words: list[str], tmp_path: Path) -> None:
    """What is not allowed is said once, by all ranks, by one on its host, or by rank 0 in a folder."""
    variables = {} if arguments[0] == "--device" else NUMPY | {BACKEND: "numpy"}
    job = openmpi5.unilaunch(2, ["run", "--data-dir", "data", *arguments], tmp_path, variables=variables)
    _check_refused(job, *words)
    assert not [*tmp_path.rglob("result.json"), *tmp_path.rglob("*.npy")]


@pytest.mark.usefixtures("by_numpy")
def test_refused_partition(openmpi5: Launcher, tmp_path: Path) -> None:
    """What one rank finds in its part, here a flipped bit, ends all ranks, and the partition is left as it is."""
    command(["partition", "--dataset", "sbm", "--num-parts", "2", "--data-dir", "data"], tmp_path).check()
    (partition,) = (tmp_path / "data" / "partitions").glob("sbm-2-*")
    path = partition / "part.1" / "owned.npy"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 0x40
    path.write_bytes(raw)
    before = {path: path.read_bytes() for path in partition.rglob("*") if path.is_file()}
    _check_refused(openmpi5.unilaunch(2, ["run", "--data-dir", "data"], tmp_path), "part.1/owned.npy", "SHA-256")
    assert {path: path.read_bytes() for path in partition.rglob("*") if path.is_file()} == before


@pytest.mark.timed
def test_many_ranks_refuse_without_a_hang(launcher: Launcher, tmp_path: Path) -> None:
    """16 ranks that all reject their input at start end by themselves; mpirun alone would hang now and then."""
    _check_refused(launcher.unilaunch(16, ["run", "--epochs", "none"], tmp_path), "--epochs")


@pytest.mark.usefixtures("by_numpy")
def test_ranks_without_mpi4py_say_what_to_install(openmpi5: Launcher, tmp_path: Path) -> None:
    """They cannot agree on anything, not even on who speaks: each says it, and none runs alone."""
    without = "import sys; sys.modules['mpi4py'] = None; from unilaunch.cli import main; main()"
    job = openmpi5.run(2, ["-c", without, "run"], tmp_path)
    assert job.returncode == 2
    assert job.refusals()
    assert all("pip install mpi4py" in line for line in job.refusals())


def test_arguments_that_are_too_long_are_one_line(openmpi5: Launcher, tmp_path: Path) -> None:
    """Both words, which Linux allows one by one, and one that it does not."""
    (tmp_path / "idle.py").touch()
    job = openmpi5.launch(1, ["idle.py", "--", "a" * 70_000, "b" * 70_000], tmp_path)
    _check_refused(job, "the command line are 14", "a variable of the environment holds 120000")
    with pytest.raises(LauncherError, match="Argument list too long: give large arguments in a file"):
        unilaunch.launch(
            tmp_path / "idle.py", args=["a" * (1 << 17)], nprocs=1, mpirun=openmpi5.path, allow_run_as_root=True
        )


LEFT = {"RANK": "0", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "4"}


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(("variables", "words"), [
    ({f"OMPI_COMM_WORLD_{name}": value for name, value in LEFT.items()}, ["rank 0 of 4", "unset OMPI_COMM_WORLD_*"]),
    ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2",
      "SLURM_STEP_NODELIST": "vm", "PMI_RANK": "0"}, ["rank 0 of 2", "srun --mpi=none"]),
], ids=["left over in the shell", "srun with another MPI"])  # fmt: skip
def test_variables_that_mpi_does_not_confirm(variables: dict[str, str], words: list[str], tmp_path: Path) -> None:
    """Several ranks by the variables, one by MPI: refused with both numbers, and with the remedy."""
    _check_refused(command(["run"], tmp_path, variables), "rank 0 of 1", *words)


@pytest.mark.usefixtures("by_numpy")
def test_interrupt_is_one_line(tmp_path: Path) -> None:
    """Ctrl-C under no launcher: no traceback, 128 + SIGINT."""
    interrupt = (
        "import os, signal, threading, time\n"
        "from pathlib import Path\n"
        "def interrupt():\n"
        "    log = Path('log_output/rank.0/stderr')\n"
        "    while not (log.exists() and 'epoch 1/' in log.read_text()): time.sleep(0.1)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "from unilaunch.cli import main; main()\n"
    )
    job = alone(["-c", interrupt, "run", "--data-dir", "data", "--epochs", "1000000"], tmp_path)
    assert (job.returncode, job.refusals(), "Traceback" in job.console) == (130, ["unilaunch: interrupted"], False)


def test_a_refusal_is_shown_however_late_rank_0_is(launcher: Launcher, tmp_path: Path) -> None:
    """All ranks refuse, rank 0 says why, and mpirun ends it as soon as another one exits."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nfrom unilaunch import errors\nsay = errors.say\n"
        "def say_late(error):\n    time.sleep(1.5)\n    say(error)\nerrors.say = say_late\n"
    )
    job = launcher.unilaunch(2, ["run", "--epochs", "-1"], tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    _check_refused(job, "--epochs")


def test_another_version_of_unilaunch_on_a_rank_is_refused(openmpi5: Launcher, tmp_path: Path) -> None:
    """As where a bare mpirun finds another Python on another host: one line with both, and what to type."""
    other = tmp_path / "other" / "unilaunch"
    copytree(Path(unilaunch.__file__).parent, other, ignore=ignore_patterns("__pycache__"))
    (other / "version.py").write_text('"""Another."""\n__version__ = "0.0.1"\n')
    (tmp_path / "train.py").touch()
    run = [sys.executable, "-m", "unilaunch", "run", "train.py"]
    job = openmpi5.run(1, [*run[1:], ":", "-n", "1", "-x", f"PYTHONPATH={other.parent}", *run], tmp_path)
    _check_refused(job, "rank 1 on", "has unilaunch 0.0.1 and Python", f"mpirun ... {sys.executable} -m unilaunch run")
