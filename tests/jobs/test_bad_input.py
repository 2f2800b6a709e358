"""Bad input: one clear line, exit code 2 on every rank, no traceback, no hang, and nothing is lost."""

import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

import unilaunch
from jobs.mpirun import BACKEND, NUMPY, Finished, Launcher, alone
from unilaunch import launch
from unilaunch.errors import LauncherError


def _refused(job: Finished, *words: str) -> None:
    """Check that *job* was refused by one line that has all *words*."""
    assert job.returncode == 2, job.console[-3000:]
    refusals = job.refusals()
    assert len(refusals) == 1, job.console[-3000:]
    for word in words:
        assert word in refusals[0]
    assert "Traceback" not in job.console
    assert job.seconds < 55  # a rank that waits in vain for another does so for 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-parts", "3"], ["--num-parts 3", "2 ranks", "mpirun -n 3"]),
        (["--dataset", "corra"], ["'corra'", "did you mean 'cora'"]),
        (["--dataset", "missing.npz"], ["missing.npz"]),
        (["--halo", "int8"], ["--halo", "--precision bfloat16"]),
        (["--epochs", "0"], ["--epochs", "greater than or equal to 1", "'0'"]),
        (["--epochs", "0", "--lr", "fast"], ["--epochs", "--lr", "'fast'"]),
        (["--hidden", "1000000000000"], ["--hidden", "less than or equal to 1000000"]),
        (["--epoch", "3"], ["--epoch", "did you mean --epochs"]),
        (["--backend", "tensorflow"], ["'tensorflow'", "mindspore, torch"]),
        (["--device", "cuda"], ["no cuda device is visible", "CUDA_VISIBLE_DEVICES", "--device cpu"]),
        (["--config", "none.toml"], ["none.toml"]),
        (["resnet"], ["no model 'resnet'"]),
        (["--output-dir", "/proc/here"], ["--output-dir", "cannot write"]),
        (["--partition-dir", "/proc/here"], ["/proc/here", "--partition-dir"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("-") else "",
)
def test_refused_options(openmpi5: Launcher, arguments: list[str], words: list[str], tmp_path: Path) -> None:
    """What is not allowed is said once, whichever rank finds it."""
    variables = {} if arguments[0] in {"--backend", "--device"} else NUMPY | {BACKEND: "numpy"}
    job = openmpi5.unilaunch(2, ["run", "--data-dir", "data", *arguments], tmp_path, variables=variables)
    _refused(job, *words)
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("*.npy"))


def test_refused_environment(openmpi5: Launcher, tmp_path: Path) -> None:
    """A variable that names no option is a slip, and is said."""
    job = openmpi5.unilaunch(2, ["run"], tmp_path, variables={"UNILAUNCH_EPOCH": "3"})
    _refused(job, "UNILAUNCH_EPOCH", "did you mean epochs")


def _graph(**changed: Any) -> dict[str, Any]:
    arrays = {"edge_index": np.array([[0, 1, 2], [1, 2, 3]]), "x": np.ones((4, 3), np.float32), "y": np.arange(4) % 2}
    return arrays | changed


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (_graph(x=np.array([[1.0, 2.0]] * 3 + [[1.0, np.nan]])), ["x", "node 3", "column 1"]),
        (_graph(edge_index=np.array([[0, 9], [1, 2]])), ["edge_index", "9"]),
        (_graph(y=np.array([0, 1, -5, 1])), ["y"]),
    ],
    ids=["NaN features", "an edge to nowhere", "a class below -1"],
)
@pytest.mark.usefixtures("by_numpy")
def test_refused_graph_file(openmpi5: Launcher, arrays: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    """A graph file's fault is named with the array and the place."""
    np.savez(tmp_path / "graph.npz", **arrays)
    job = openmpi5.unilaunch(2, ["run", "--dataset", "graph.npz", "--data-dir", "data"], tmp_path)
    _refused(job, "graph.npz", *words)
    assert not list(tmp_path.rglob("*.npy"))


class _Importing:
    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("touched"),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[: len(raw) // 2], ["ind.cora.allx"]),
        (lambda _: pickle.dumps(_Importing()), ["ind.cora.allx", "SHA-256"]),
    ],
    ids=["truncated", "wants to import"],
)
@pytest.mark.usefixtures("by_numpy")
def test_refused_dataset_file(
    openmpi5: Launcher, change: Callable[[bytes], bytes], words: list[str], cora: Path, tmp_path: Path
) -> None:
    """A damaged or hostile raw file is refused and never executed."""
    data = tmp_path / "data" / "planetoid"
    data.mkdir(parents=True)
    for file in (cora / "planetoid").iterdir():
        (data / file.name).write_bytes(file.read_bytes())
    (data / "ind.cora.allx").write_bytes(change((data / "ind.cora.allx").read_bytes()))
    job = openmpi5.unilaunch(2, ["run", "--dataset", "cora", "--data-dir", "data"], tmp_path)
    _refused(job, *words)
    assert not (tmp_path / "touched").exists()


@pytest.fixture(scope="module")
def partition_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the generated graph in two parts."""
    folder = tmp_path_factory.mktemp("partition")
    line = ["-m", "unilaunch", "partition", "--dataset", "sbm", "--num-parts", "2", "--data-dir", "data"]
    alone(line, folder).check()
    return folder / "data"


def _truncate(partition: Path) -> None:
    path = partition / "part.1" / "halo.npy"
    path.write_bytes(path.read_bytes()[:-8])


def _flip(partition: Path) -> None:
    path = partition / "part.1" / "owned.npy"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 0x40
    path.write_bytes(raw)


def _of_another(partition: Path) -> None:
    arguments = ["--dataset", "sbm", "--balance", "edges", "--num-parts", "2", "--data-dir", "other"]
    alone(["-m", "unilaunch", "partition", *arguments], partition.parents[2]).check()
    (other,) = (partition.parents[2] / "other" / "partitions").glob("sbm-2-*")
    for path in partition.glob("part.*/*"):
        if path.is_file():
            path.write_bytes((other / path.relative_to(partition)).read_bytes())


def _lose_a_file(partition: Path) -> None:
    (partition / "part.1" / "halo.npy").unlink()


@pytest.mark.parametrize(
    ("launcher", "damage", "words"),
    [
        ("4.1", _truncate, ["part.1/halo.npy", "bytes"]),
        ("5.0", _flip, ["part.1/owned.npy", "SHA-256"]),
        ("5.0", _of_another, ["made from other data"]),
        ("4.1", _lose_a_file, ["part.1/halo.npy"]),
    ],
    ids=["truncated", "a flipped bit", "of another data set", "a lost file"],
    indirect=["launcher"],
)
@pytest.mark.usefixtures("by_numpy")
def test_refused_partition(
    launcher: Launcher, damage: Callable[[Path], None], words: list[str], partition_data: Path, tmp_path: Path
) -> None:
    """What one rank finds in its part ends all ranks, and the partition is left as it is."""
    copytree(partition_data, tmp_path / "data")
    (partition,) = (tmp_path / "data" / "partitions").glob("sbm-2-*")
    damage(partition)
    before = {path: path.read_bytes() for path in partition.rglob("*") if path.is_file()}
    job = launcher.unilaunch(2, ["run", "--data-dir", "data"], tmp_path)
    _refused(job, *words)
    assert {path: path.read_bytes() for path in partition.rglob("*") if path.is_file()} == before


@pytest.mark.timed
def test_many_ranks_refuse_without_a_hang(launcher: Launcher, tmp_path: Path) -> None:
    """16 ranks that all reject their input at start end by themselves; mpirun alone would hang now and then."""
    job = launcher.unilaunch(16, ["run", "--epochs", "none"], tmp_path)
    _refused(job, "--epochs")


@pytest.mark.usefixtures("by_numpy")
def test_every_rank_ends_with_code_2(openmpi5: Launcher, tmp_path: Path) -> None:
    """Not only the first one that mpirun sees."""
    record = (
        "import os, sys\n"
        "from unilaunch.cli import main\n"
        "try: main()\n"
        "except SystemExit as end:\n"
        "    from pathlib import Path; import time\n"
        "    rank, new = os.environ['OMPI_COMM_WORLD_RANK'], Path(f'new.{os.getpid()}')\n"
        "    new.write_text(str(end.code)); new.rename(f'code.{rank}')\n"
        "    until = time.monotonic() + 20\n"
        "    while len(list(Path().glob('code.?'))) < 4 and time.monotonic() < until: time.sleep(0.05)\n"
        "    raise\n"
    )
    openmpi5.run(4, ["-c", record, "run", "--data-dir", "data", "--dataset", "corra"], tmp_path)
    assert [(tmp_path / f"code.{rank}").read_text() for rank in range(4)] == ["2"] * 4


@pytest.mark.parametrize(("launcher", "backend"), [("4.1", "torch"), ("5.0", "mindspore")], indirect=["launcher"])
def test_crash_of_one_rank_ends_the_job(launcher: Launcher, backend: str, tmp_path: Path) -> None:
    """An unforeseen exception in one rank: its traceback, its record, and no rank is left waiting."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'OMPI_COMM_WORLD_RANK' in os.environ:\n"
        "    import unilaunch_graph.optimizer as optimizer\n"
        "    step = optimizer.Adam.step\n"
        "    fails = lambda: os.environ['OMPI_COMM_WORLD_RANK'] == '1'\n"
        "    optimizer.Adam.step = lambda self, gradient: 1 / 0 if fails() else step(self, gradient)\n"
    )
    arguments = ["run", "--data-dir", "data", "--backend", backend]
    job = launcher.unilaunch(3, arguments, tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    assert job.returncode == 1
    assert "ZeroDivisionError" in (job.output / "rank.1" / "stderr").read_text()
    assert "ZeroDivisionError" in (job.output / "rank.1" / "failure.json").read_text()
    assert not (job.output / "rank.0" / "failure.json").exists()
    assert not (job.output / "result.json").exists()


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
    options = ["--mpirun", str(openmpi5.path), "--allow-run-as-root", "-n", "1", "idle.py", "--"]
    job = alone(["-m", "unilaunch", "launch", *options, "a" * 70_000, "b" * 70_000], tmp_path)
    _refused(job, "the command line are 14", "a variable of the environment holds 120000")
    with pytest.raises(
        LauncherError, match="cannot be started: Argument list too long: give large arguments in a file"
    ):
        launch(tmp_path / "idle.py", args=["a" * (1 << 17)], nprocs=1, mpirun=openmpi5.path, allow_run_as_root=True)


@pytest.mark.usefixtures("by_numpy")
def test_variables_left_over_in_the_shell_are_not_believed(tmp_path: Path) -> None:
    """Four ranks by the variables, one by MPI: refused, with both numbers."""
    left = {f"OMPI_COMM_WORLD_{name}": value for name, value in {"RANK": "0", "SIZE": "4"}.items()}
    left |= {f"OMPI_COMM_WORLD_LOCAL_{name}": value for name, value in {"RANK": "0", "SIZE": "4"}.items()}
    _refused(alone(["-m", "unilaunch", "run"], tmp_path, left), "rank 0 of 4", "rank 0 of 1", "unset OMPI_COMM_WORLD_*")


@pytest.mark.usefixtures("by_numpy")
def test_srun_with_another_mpi_is_told_what_to_do(tmp_path: Path) -> None:
    """Its cluster has an MPI type set, and MPI knows nothing of it: the remedy is Slurm's."""
    step = {
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "vm", "PMI_RANK": "0",
    }  # fmt: skip
    _refused(alone(["-m", "unilaunch", "run"], tmp_path, step), "rank 0 of 2", "rank 0 of 1", "srun --mpi=none")


@pytest.mark.usefixtures("by_numpy")
def test_a_model_that_no_memory_holds_is_one_line(tmp_path: Path) -> None:
    """8 TB of weights: the rank, what could not be had, and what to do; the traceback is in the record."""
    np.savez(tmp_path / "graph.npz", **_graph())
    arguments = ["--dataset", "graph.npz", "--data-dir", "data", "--hidden", "1000000", "--layers", "3", "--force"]
    job = alone(["-m", "unilaunch", "run", *arguments], tmp_path)
    assert job.returncode == 1
    (line,) = (line for line in job.stderr.splitlines() if "out of memory" in line)
    assert re.search(r"rank 0 on \S+: out of memory: Unable to allocate \S+ TiB", line)
    assert "Traceback" not in job.stderr
    assert "MemoryError" in (job.output / "rank.0" / "failure.json").read_text()


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
    assert job.returncode == 130
    assert job.refusals() == ["unilaunch: interrupted"]
    assert "Traceback" not in job.console


def test_a_refusal_is_shown_however_late_rank_0_is(launcher: Launcher, tmp_path: Path) -> None:
    """All ranks refuse, rank 0 says why, and mpirun ends it as soon as another one exits."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nfrom unilaunch import errors\nsay = errors.say\n"
        "def say_late(error):\n    time.sleep(1.5)\n    say(error)\nerrors.say = say_late\n"
    )
    job = launcher.unilaunch(4, ["run", "--epochs", "-1"], tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    _refused(job, "--epochs")


def test_another_version_of_unilaunch_on_a_rank_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    """As where a bare mpirun finds another Python on another host: one line with both, and what to type."""
    other = tmp_path / "other" / "unilaunch"
    copytree(Path(unilaunch.__file__).parent, other, ignore=ignore_patterns("__pycache__"))
    (other / "version.py").write_text('"""Another."""\n__version__ = "0.0.1"\n')
    (tmp_path / "train.py").touch()
    run = [sys.executable, "-m", "unilaunch", "run", "train.py"]
    second = [":", "-n", "1", "-x", f"PYTHONPATH={other.parent}", *run]
    job = launcher.run(1, [*run[1:], *second], tmp_path)
    _refused(job, "rank 1 on", "has unilaunch 0.0.1 and Python", f"type mpirun ... {sys.executable} -m unilaunch run")
