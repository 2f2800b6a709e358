"""Slurm for real: srun's ranks on two nodes, and batch files that are really submitted."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from jobs.conftest import RUN
from jobs.mpirun import PAUSE, finish, unilaunch, wait_until
from jobs.preemption import ask, submit
from jobs.slurm import lacking, slurm_cluster

PROGRAMS = Path(__file__).parent / "programs"
UNILAUNCH = [sys.executable, "-m", "unilaunch"]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Two nodes."""
    if missing := lacking():
        pytest.skip(f"no Slurm can be started here: this machine lacks {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(("options", "backend"), [("-N2 -n2", "torch"), ("-N1 -n2", "numpy")])
def test_the_same_training_under_srun(
    options: str, backend: str, slurm: Mapping[str, str], curve: list[float], tmp_path: Path
) -> None:
    """On two nodes and on one; srun brings no MPI here, so the ranks speak over sockets."""
    job = finish(["srun", *options.split(), *UNILAUNCH, *RUN, "--backend", backend], tmp_path, dict(slurm)).check()
    assert (job.result["world_size"], job.result["launcher"]) == (2, "Slurm")
    np.testing.assert_allclose(job.result["loss"], curve, rtol=0, atol=1e-5)


def test_jobs_in_a_shell_of_srun(slurm: Mapping[str, str], tmp_path: Path) -> None:
    """Launch, and the line that it shows, waited for ever for the processors of the shell's own step.

    Srun --pty starts all tasks, and leaves its variables in the shell: a step that is started there has them, too.
    Where srun starts two of launch, it is refused.
    """
    (tmp_path / "say.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    module, environ = shlex.join(UNILAUNCH), {**slurm, **ROOT, "UNILAUNCH_ALLOW_RUN_AS_ROOT": "1"}
    launch, run = f"{module} launch -n 2 say.py", f"{module} run say.py"
    shown = f"{module} launch -n 2 --dry-run say.py | head -n 1"
    jobs = f'{launch} && eval "$({shown})" && srun --overlap -N1 -n2 {run}'
    for program, times in ((f"[ $SLURM_PROCID = 1 ] || {{ {jobs}; }}", 3), (run, 1)):
        words = ["srun", "-N1", "-n2", "--pty", "sh", "-c", program]
        shell = f"import pty; raise SystemExit(pty.spawn({words!r}) >> 8)"
        said = finish([sys.executable, "-c", shell], tmp_path, environ).check().stdout
        assert said.count("rank 0 of 2") == times
    # -K0: the first of the two to exit does not end the other one, whose code would then be that of a signal.
    twice = finish(["srun", "-K0", "-N1", "-n2", *launch.split()], tmp_path, environ)
    assert twice.returncode == 2
    assert "Slurm has started 2 processes of `unilaunch launch`" in twice.console
    for how in ([], ["--mpirun", "/usr/bin/mpirun"]):  # of salloc: as many ranks as the allocation has tasks
        line = ["salloc", "-N1", "-n4", *launch.split()[:4], *how, "--console", "all", "say.py"]
        said = finish(line, tmp_path, environ).check().stdout
        assert sorted(said.splitlines()) == [f"rank {rank} of 4" for rank in range(4)]


def test_a_script_for_torchrun_under_srun(slurm: Mapping[str, str], tmp_path: Path) -> None:
    """Unchanged, on unequal nodes; and a failure ends the other ranks at once."""
    run = ["srun", "-N2", "-n3", *UNILAUNCH, "run"]
    job = finish([*run, str(PROGRAMS / "meet.py"), "--", "--lr", "0.01"], tmp_path, dict(slurm)).check()
    for rank in range(3):
        assert job.said(rank).startswith(f"{rank}/3 local")
        assert " True 4.980000 4.980000 " in job.said(rank)
    failed = finish([*run, str(PROGRAMS / "ending.py"), "--", "exit"], tmp_path, dict(slurm))
    assert (failed.returncode == 0, failed.seconds < 90, failed.failure(1)["exit_code"]) == (False, True, 7)


@pytest.mark.usefixtures("by_numpy")
def test_a_preempted_job_goes_on_by_itself(
    slurm: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job of a higher partition takes its nodes; then its time is nearly over. Each epoch is trained once."""
    monkeypatch.setenv(PAUSE, "0.05")
    training = ["--epochs", "200", "--precision", "float64", "--data-dir", "data"]
    job = submit(["--nodes", "2", "--ntasks-per-node", "1", "--requeue", *training], tmp_path, slurm)
    for restarts, kind in enumerate(["urgent", "notice"]):
        job.await_start(restarts)
        job.await_epochs(1)
        job.preempt(kind)
    ended = job.await_end(200)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "2"), job.console
    assert job.epochs_trained() == 200
    undisturbed = unilaunch(["run", *training], tmp_path, {PAUSE: "0"}).check().result["loss"]
    np.testing.assert_allclose(job.losses, undisturbed, rtol=0, atol=1e-10)


def test_a_preempted_script_goes_on_by_itself(slurm: Mapping[str, str], tmp_path: Path) -> None:
    """One launch on each of two nodes; each step is made once."""
    (tmp_path / "saving.py").write_text(
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "asked = []\nsignal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n"
        "kept, steps = (Path(f'{name}.' + os.environ['RANK']) for name in ('kept', 'steps'))\n"
        "for step in range(int(kept.read_text()) if kept.exists() else 0, 100):\n"
        "    if asked: kept.write_text(str(step)); sys.exit(75)\n"
        "    time.sleep(0.1); steps.open('a').write(f'{step}\\n')\n"
    )
    job = submit(["--nodes", "2", "--ntasks-per-node", "2", "--requeue", "saving.py"], tmp_path, slurm)
    files = [tmp_path / f"steps.{rank}" for rank in range(4)]
    wait_until(files[3].exists)
    ask(["scancel", "--signal=TERM", job.number], tmp_path, slurm)  # as Slurm does for --signal=TERM@60
    ended = job.await_end(200)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.console
    assert [file.read_text().split() for file in files] == [[str(step) for step in range(100)]] * 4


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_batch_file_of_a_script_starts_one_launch_on_each_node(
    nodes: int, slurm: Mapping[str, str], tmp_path: Path
) -> None:
    """With all processors and devices of the node, and with restarts: here after the first failure of the last rank."""
    (tmp_path / "work.py").write_text(
        "import os, sys\nnames = 'RANK', 'WORLD_SIZE', 'UNILAUNCH_SECRET', 'SLURM_PROCID'\n"
        "print(*map(os.environ.get, names))\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '2': sys.exit(5)\n"
    )
    shape = ["--nodes", str(nodes), "--ntasks-per-node", str(4 // nodes), "--max-restarts", "1"]
    job = submit([*shape, "work.py"], tmp_path, slurm)
    assert job.await_end(200)["JobState"] == "COMPLETED", job.console
    assert "rank 2 on" in job.console
    logs = [(job.output / f"rank.{rank}" / "stdout").read_text().split() for rank in range(4)]
    assert logs == [[str(rank), "4", "None", "None"] for rank in range(4)]


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize(("size", "options"), [
    ("3", ["-H", "n1:1,n0:2"]), ("2", ["-H", "n0:1,n1:1"]), ("2", ["--bind-to", "none", "--mpirun", "/usr/bin/mpirun"]),
], ids=["unequal nodes", "equal nodes", "mpirun"])  # fmt: skip
def test_the_batch_file_that_launch_writes_is_submitted(
    size: str, options: list[str], slurm: Mapping[str, str], curve: list[float], tmp_path: Path
) -> None:
    """Srun on unequal and on equal nodes; mpirun in the allocation, where one of its options was asked for."""
    job = submit(["-n", size, *options, *RUN[1:]], tmp_path, {**slurm, **ROOT})
    assert re.search("^exec (srun|/usr/bin/mpirun) ", (tmp_path / "job.sh").read_text(), re.MULTILINE)
    assert job.await_end(200)["JobState"] == "COMPLETED", job.console
    assert job.result["world_size"] == int(size)
    np.testing.assert_allclose(job.losses, curve, rtol=0, atol=1e-5)
