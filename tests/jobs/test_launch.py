"""`unilaunch launch` and `unilaunch.launch(spec)` on this host, under a real mpirun."""

import os
import sys
from pathlib import Path
from socket import gethostname

import pytest

import unilaunch
from jobs.mpirun import Finished, Launcher, alone, finish
from jobs.mpirun import unilaunch as command

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`unilaunch.launch` starts programs in the current one, where they leave files."""
    monkeypatch.chdir(tmp_path)


def _spec(launcher: Launcher, folder: Path, **fields: object) -> unilaunch.LaunchSpec:
    mpi = {"mpirun": launcher.path, "allow_run_as_root": True, "oversubscribe": True}
    return unilaunch.LaunchSpec.model_validate({**mpi, "output_dir": folder / "log_output", **fields})


def test_a_single_rank_has_every_core_and_does_not_wait_for_an_empty_input(launcher: Launcher, tmp_path: Path) -> None:
    """Open MPI would bind it to one. As in a job of Slurm's, cron's or ssh's, with the input closed."""
    (tmp_path / "ask.py").write_text(
        "import os, sys\nprint(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], [sys.stdin.read()])\n"
    )
    words = [sys.executable, "-m", "unilaunch", "launch", *launcher.options[:-1], "-n", "1", "ask.py"]
    mine = sorted(os.sched_getaffinity(0))
    for redirection in ("</dev/null", "<&-"):
        job = finish(["sh", "-c", f'exec "$@" {redirection}', "sh", *words], tmp_path, None).check()
        assert job.stdout == f"{mine} {len(mine)} ['']\n"


@pytest.mark.parametrize("start", ["launch -n 2", "run"])
def test_pythons_development_mode_warns_of_nothing_of_ours(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """What it prints is about the script."""
    (tmp_path / "train.py").write_text("print('here')\n")
    options = [*openmpi5.options, "--console", "all"] if "launch" in start else []
    job = command([*start.split(), *options, "train.py"], tmp_path, {"PYTHONDEVMODE": "1"}).check()
    assert (set(job.stdout.split()), job.stderr) == ({"here"}, "")


@pytest.mark.usefixtures("by_numpy")
def test_a_program_can_launch(openmpi5: Launcher, tmp_path: Path) -> None:
    """What comes back is the model's result, and how each rank ended; the model's options stand beside the spec."""
    result = unilaunch.launch(_spec(openmpi5, tmp_path, nprocs=2), epochs=3, data_dir=str(tmp_path))
    assert (result.returncode, result.failure) == (0, None)
    assert result.result
    assert len(result.result["loss"]) == 3  # type: ignore[arg-type]
    assert [(rank.rank, rank.device, rank.returncode) for rank in result.ranks] == [(0, "cpu", 0), (1, "cpu", 0)]
    assert all((rank.log_dir / "stderr").exists() for rank in result.ranks)


def test_the_first_failure_is_the_jobs(launcher: Launcher, tmp_path: Path) -> None:
    """Its exit code, its words, and nothing of the others'."""
    job = launcher.launch(3, [str(PROGRAMS / "ending.py"), "--", "exit"], tmp_path)
    assert job.returncode == 7
    assert any(line.startswith("unilaunch: rank 1 on ") and "exit code 7" in line for line in job.refusals())
    assert "non-zero" not in job.console  # mpirun's own words, which name another rank


def test_a_failure_is_an_exception(openmpi5: Launcher, tmp_path: Path) -> None:
    """With what the rank raised; an error that all ranks share is all ranks'."""
    spec = _spec(openmpi5, tmp_path, nprocs=3, target=str(PROGRAMS / "ending.py"), args=["raise"])
    with pytest.raises(unilaunch.JobFailed, match=r"rank 1 on .* failed.*: .*broken on purpose") as failed:
        unilaunch.launch(spec)
    failure = failed.value.failure
    assert failure
    assert (failure.rank, failure.message, failed.value.exit_code) == (1, "broken on purpose", 1)
    with pytest.raises(unilaunch.JobFailed, match=r"^all 3 ranks: --interface none0: "):
        unilaunch.launch(spec.model_copy(update={"interface": "none0"}))


def test_several_launches_of_one_job_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    """Where mpirun has started each; a rank's program may launch other jobs: Open MPI 4's mpirun itself refuses."""
    (tmp_path / "say.py").write_text("print('said')\n")
    words = ["-m", "unilaunch", "launch", "-n", "1", *launcher.options]
    job = launcher.run(2, [*words, "say.py"], tmp_path)
    assert job.returncode == 2
    assert "has started 2 processes of `unilaunch launch`" in job.console
    assert "said" not in job.console
    if launcher.version < "5":
        return
    (tmp_path / "outer.py").write_text(
        "import os, subprocess, sys\nfolder = ['--output-dir', 'own.' + os.environ['RANK']]\n"
        f"subprocess.run([sys.executable, *{words!r}, *folder, 'say.py'], check=True)\n"
    )
    assert "said" in launcher.launch(2, ["outer.py"], tmp_path).check().console


def test_a_rank_of_a_direct_start_starts_a_job_by_mpirun(openmpi5: Launcher, tmp_path: Path) -> None:
    """The ranks of the inner job are its own; they were taken for the outer rank."""
    (tmp_path / "say.py").write_text("import os\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    words = ["-m", "unilaunch", "launch", "-n", "2", *openmpi5.options, "--output-dir", "own", "--console", "all"]
    (tmp_path / "outer.py").write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, *{words!r}, 'say.py'], check=True)\n"
    )
    job = alone(["-m", "unilaunch", "launch", "-n", "1", "outer.py"], tmp_path).check()
    assert sorted(job.stdout.splitlines()) == ["0 of 2", "1 of 2"]


def test_only_rank_0_is_shown(openmpi5: Launcher, tmp_path: Path) -> None:
    """Every rank's output is kept. That all are shown when asked for: test_one_node_runs."""
    (tmp_path / "say.py").write_text("import os, sys\nsys.stdout.write('I am ' + os.environ['RANK'] + '\\n')\n")
    job = openmpi5.launch(2, ["say.py"], tmp_path).check()
    assert ("I am 0" in job.stdout, "I am 1" in job.stdout, job.said(1)) == (True, False, "I am 1\n")


def _of_12(launcher: Launcher, limits: str, folder: Path) -> Finished:
    (folder / "say.py").write_text("import os; open(f\"up.{os.environ['RANK']}\", 'w').close()\n")
    words = ["launch", "-n", "12", *launcher.options, "say.py"]
    return finish(["prlimit", f"--nofile={limits}", sys.executable, "-m", "unilaunch", *words], folder, None)


def test_many_ranks_with_few_open_files(openmpi5: Launcher, tmp_path: Path) -> None:
    """The soft limit is raised as far as the ranks need; a hard one is said, with what to raise."""
    job = _of_12(openmpi5, "64:4096", tmp_path).check()
    assert (len(list(tmp_path.glob("up.*"))), "ulimit" in job.console) == (12, False)
    assert "ulimit -Hn allows 64 open files, and 12 ranks need up to" in _of_12(openmpi5, "64:64", tmp_path).console


def test_jobs_of_one_user_share_no_folder(launcher: Launcher, tmp_path: Path) -> None:
    """Open MPI 4 by itself shares one between jobs, which fails where one ends while another one begins."""
    (tmp_path / "look.py").write_text(
        "import os\nfrom mpi4py import MPI\nprint(os.listdir(os.environ['TMPDIR']), MPI.COMM_WORLD.size)\n"
    )
    (temporary := tmp_path / "temporary").mkdir()
    job = launcher.launch(2, ["look.py"], tmp_path, {"TMPDIR": str(temporary)}).check()
    assert [word in job.console for word in ("['unilaunch-", "ompi.", "prte.")] == [True, False, False]
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(("name", "title"), [("mpich", "MPICH"), ("intel", "Intel MPI")])
@pytest.mark.usefixtures("by_numpy")
def test_mpich_and_intel_mpi_are_launched_too(name: str, title: str, tmp_path: Path) -> None:
    """By their own words; also in a container under Slurm whose srun knows no cluster: Hydra would wait for ever."""
    mpiexec = Path(__file__).parents[2] / ".mpi" / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    hosts = dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), gethostname().partition(".")[0])
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "2", **hosts}
    arguments = ["launch", "-n", "2", "--mpirun", str(mpiexec), "--epochs", "3", "--data-dir", "data"]
    job = command(arguments, tmp_path, slurm).check()
    assert (job.result["launcher"], job.result["world_size"]) == (title, 2)
    shown = command([*arguments, "--dry-run", "--json"], tmp_path).check().stdout
    assert f'"launcher": "{title}"' in shown
