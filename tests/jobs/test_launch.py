"""`unilaunch launch` and `unilaunch.launch(spec)` on this host, under a real mpirun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import gethostname

import pytest

import unilaunch
from jobs.mpirun import Finished, Launcher, alone, finish
from unilaunch.agent.processes import state

PROGRAMS = Path(__file__).parent / "programs"
OPTIONS = ["--allow-run-as-root", "--oversubscribe"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`unilaunch.launch` starts programs in the current one, where they leave files."""
    monkeypatch.chdir(tmp_path)


def _launch(launcher: Launcher, arguments: list[str], folder: Path) -> Finished:
    return alone(["-m", "unilaunch", "launch", "--mpirun", str(launcher.path), *OPTIONS, *arguments], folder)


def _spec(launcher: Launcher, folder: Path, **fields: object) -> unilaunch.LaunchSpec:
    mpi = {"mpirun": launcher.path, "allow_run_as_root": True, "oversubscribe": True}
    return unilaunch.LaunchSpec.model_validate({**mpi, "output_dir": folder / "log_output", **fields})


@pytest.mark.usefixtures("by_numpy")
def test_the_line_that_is_shown_is_one_that_runs(launcher: Launcher, tmp_path: Path) -> None:
    """Copied from --dry-run into a shell, it does what launch does, with the same curve."""
    arguments = ["-n", "3", "--epochs", "4", "--data-dir", "data"]
    shown = _launch(launcher, [*arguments, "--dry-run"], tmp_path).check()
    assert not (tmp_path / "log_output").exists()
    by_hand = finish(["sh", "-c", shown.stdout.splitlines()[0]], tmp_path, None).check().result
    launched = _launch(launcher, arguments, tmp_path).check()
    assert launched.result["loss"] == by_hand["loss"]
    assert launched.result["world_size"] == 3
    assert len(list((tmp_path / "log_output" / "previous").iterdir())) == 1


def test_a_single_rank_has_every_core(launcher: Launcher, tmp_path: Path) -> None:
    """Open MPI by itself would bind it, with all its threads and data loaders, to one."""
    (tmp_path / "cores.py").write_text(
        "import os\nprint(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])\n"
    )
    mine = sorted(os.sched_getaffinity(0))
    line = ["-m", "unilaunch", "launch", "--mpirun", str(launcher.path), "--allow-run-as-root", "-n", "1", "cores.py"]
    job = alone(line, tmp_path).check()
    assert job.stdout == f"{mine} {len(mine)}\n"


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-"])
def test_a_rank_does_not_wait_for_an_input_that_is_empty(launcher: Launcher, redirection: str, tmp_path: Path) -> None:
    """As in a job of Slurm's, cron's or ssh's: input() ends at once, as in plain Python."""
    (tmp_path / "ask.py").write_text("import sys\nprint('read', repr(sys.stdin.read()))\n")
    words = [sys.executable, "-m", "unilaunch", "launch", "--mpirun", str(launcher.path), *OPTIONS, "-n", "2", "ask.py"]
    job = finish(["sh", "-c", f'exec "$@" {redirection}', "sh", *words], tmp_path, None).check()
    assert job.stdout == "read ''\n"


@pytest.mark.parametrize("start", ["launch -n 1", "launch -n 2", "run"])
def test_pythons_development_mode_warns_of_nothing_of_ours(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """What it prints is about the script. Where a socket is left to the end, Python 3.11 does not always say so."""
    (tmp_path / "train.py").write_text(
        "import gc, os, socket\n"
        "class Last:\n"
        "    def __del__(self, gc=gc, write=os.write, kind=socket.socket):\n"
        "        gc.unfreeze()\n"
        "        left = [one for one in gc.get_objects() if type(one) is kind and one.fileno() >= 0]\n"
        "        write(2, repr(left).encode() if left else b'')\n"
        "last = Last()\nprint('here')\n"
    )
    command, *count = start.split()
    options = ["--mpirun", str(openmpi5.path), *OPTIONS, *count, "--console", "all"] if count else []
    job = alone(["-m", "unilaunch", command, *options, "train.py"], tmp_path, {"PYTHONDEVMODE": "1"}).check()
    assert (set(job.stdout.split()), job.stderr) == ({"here"}, "")


@pytest.mark.usefixtures("by_numpy")
def test_a_program_can_launch(launcher: Launcher, tmp_path: Path) -> None:
    """What comes back is the model's result, and how each rank ended; the model's options stand beside the spec."""
    result = unilaunch.launch(_spec(launcher, tmp_path, nprocs=2), epochs=3, data_dir=str(tmp_path))
    assert (result.returncode, result.failure) == (0, None)
    assert result.result
    assert len(result.result["loss"]) == 3  # type: ignore[arg-type]
    assert [(rank.rank, rank.device, rank.returncode) for rank in result.ranks] == [(0, "cpu", 0), (1, "cpu", 0)]
    assert all((rank.log_dir / "stderr").exists() for rank in result.ranks)


def test_the_first_failure_is_the_jobs(launcher: Launcher, tmp_path: Path) -> None:
    """Its exit code, its traceback on the console, and nothing of the others'."""
    job = _launch(launcher, ["-n", "3", str(PROGRAMS / "ending.py"), "--", "exit"], tmp_path)
    assert job.returncode == 7
    assert any(line.startswith("unilaunch: rank 1 on ") and "exit code 7" in line for line in job.refusals())
    assert "non-zero" not in job.console  # mpirun's own words, which name another rank
    spec = _spec(launcher, tmp_path, nprocs=3, target=str(PROGRAMS / "ending.py"), args=["raise"])
    with pytest.raises(
        unilaunch.JobFailed, match=r"rank 1 on .* failed.*: .*broken on purpose \(exit code 1\)"
    ) as failed:
        unilaunch.launch(spec)
    failure = failed.value.failure
    assert failure
    assert (failure.rank, failure.message, failed.value.exit_code) == (1, "broken on purpose", 1)


def test_an_error_of_all_ranks_is_the_jobs_failure(launcher: Launcher, tmp_path: Path) -> None:
    """In its own words; rank 0 has shown it."""
    spec = _spec(launcher, tmp_path, nprocs=3, target=str(PROGRAMS / "ending.py"), interface="none0")
    with pytest.raises(unilaunch.JobFailed, match=r"^all 3 ranks: --interface none0: ") as failed:
        unilaunch.launch(spec)
    failure = failed.value.failure
    assert failure
    assert (failure.rank, failure.exit_code, failed.value.exit_code) == (0, 1, 1)


def test_several_launches_of_one_job_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    """Where mpirun has started each; a rank's program may launch other jobs, if mpirun itself allows it."""
    (tmp_path / "say.py").write_text("print('said')\n")
    words = ["-m", "unilaunch", "launch", "-n", "1", "--mpirun", str(launcher.path), *OPTIONS]
    job = launcher.run(2, [*words, "say.py"], tmp_path)
    assert job.returncode == 2
    assert "has started 2 processes of `unilaunch launch`" in job.console
    assert "said" not in job.console
    (tmp_path / "outer.py").write_text(
        "import os, subprocess, sys\nfolder = ['--output-dir', 'own.' + os.environ['RANK']]\n"
        f"subprocess.run([sys.executable, *{words!r}, *folder, 'say.py'], check=True)\n"
    )
    nested = _launch(launcher, ["-n", "2", "outer.py"], tmp_path)
    assert "has started" not in nested.console
    assert "said" in nested.console or launcher.version < "5"  # Open MPI 4's mpirun refuses, or crashes, in a rank


def test_only_rank_0_is_shown(openmpi5: Launcher, tmp_path: Path) -> None:
    """Unless all are asked for; every rank's output is kept."""
    (tmp_path / "say.py").write_text("import os, sys\nsys.stdout.write('I am ' + os.environ['RANK'] + '\\n')\n")
    shown = _launch(openmpi5, ["-n", "2", "say.py"], tmp_path).check().stdout
    assert "I am 0" in shown
    assert "I am 1" not in shown
    assert (tmp_path / "log_output" / "rank.1" / "stdout").read_text() == "I am 1\n"
    assert "I am 1" in _launch(openmpi5, ["-n", "2", "--console", "all", "say.py"], tmp_path).check().stdout


def _of_12(launcher: Launcher, limits: str, folder: Path) -> Finished:
    (folder / "say.py").write_text("import os; open(f\"up.{os.environ['RANK']}\", 'w').close()\n")
    words = ["launch", "-n", "12", "--mpirun", str(launcher.path), *OPTIONS, "say.py"]
    return finish(["prlimit", f"--nofile={limits}", sys.executable, "-m", "unilaunch", *words], folder, None)


def test_many_ranks_with_few_open_files(launcher: Launcher, tmp_path: Path) -> None:
    """The soft limit is raised as far as the ranks need."""
    job = _of_12(launcher, "64:4096", tmp_path).check()
    assert len(list(tmp_path.glob("up.*"))) == 12
    assert "ulimit" not in job.console


def test_a_limit_of_open_files_that_cannot_be_raised_is_said(openmpi5: Launcher, tmp_path: Path) -> None:
    """With what to raise."""
    job = _of_12(openmpi5, "64:64", tmp_path)
    assert "ulimit -Hn allows 64 open files, and 12 ranks need up to 144 on this host" in job.console


def test_what_a_killed_mpirun_has_left_stops_no_job(openmpi5: Launcher, tmp_path: Path) -> None:
    """Its session folder has its process number: a plain mpirun that gets this number later does not start."""
    (tmp_path / "say.py").touch()
    (temporary := tmp_path / "temporary").mkdir()
    variables = {"TMPDIR": str(temporary)}
    left_over = f'"{temporary}/ompi.$$"'  # of the shell's number, which mpirun has afterwards
    tool = f"pmix.{gethostname().partition('.')[0]}.tool"
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f'#!/bin/sh\nmkdir {left_over} && : > {left_over}/{tool} && exec {openmpi5.path} "$@"\n')
    mpirun.chmod(0o755)
    plain = Launcher(mpirun, openmpi5.version).run(1, ["say.py"], tmp_path, variables=variables)
    assert "listener thread failed to start" in plain.stderr
    launch = ["-m", "unilaunch", "launch", "-n", "1", "--mpirun", str(mpirun), *OPTIONS]
    alone([*launch, "say.py"], tmp_path, variables).check()
    left = {path.name for path in temporary.iterdir() if not path.name.startswith("ompi.")}
    assert not left


def test_jobs_of_one_user_share_no_folder(launcher: Launcher, tmp_path: Path) -> None:
    """Open MPI 4 by itself shares one between jobs, which fails where one ends while another one begins."""
    (tmp_path / "look.py").write_text(
        "import os\nfrom mpi4py import MPI\nprint(os.listdir(os.environ['TMPDIR']), MPI.COMM_WORLD.size)\n"
    )
    (temporary := tmp_path / "temporary").mkdir()
    launch = ["-m", "unilaunch", "launch", "-n", "2", "--mpirun", str(launcher.path), *OPTIONS]
    job = alone([*launch, "look.py"], tmp_path, {"TMPDIR": str(temporary)}).check()
    assert "['unilaunch-" in job.console
    assert "ompi." not in job.console
    assert "prte." not in job.console
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_once(launcher: Launcher, number: signal.Signals, tmp_path: Path) -> None:
    """No rank outlives it, however often the user asks; 128 + N."""
    (tmp_path / "wait.py").write_text(
        "import os, time\nfrom pathlib import Path\nPath('pid.' + os.environ['RANK']).write_text(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    line = [sys.executable, "-X", "faulthandler", "-m", "unilaunch", "launch", "--mpirun", str(launcher.path), *OPTIONS]
    console = tmp_path / "console"
    with (
        console.open("w") as out,
        subprocess.Popen([*line, "-n", "2", "wait.py"], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT) as job,
    ):
        deadline = time.monotonic() + 100
        while len(pids := [file.read_text() for file in tmp_path.glob("pid.*")]) < 2 or not all(pids):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for _ in range(3):
            job.send_signal(number)
            time.sleep(0.1)
        deadline = time.monotonic() + 60
        while job.poll() is None:  # up to its last moment, in which Python has already given up its handlers
            if time.monotonic() > deadline:
                job.send_signal(signal.SIGABRT)  # which shows the stacks
                job.wait(60)
            else:
                job.send_signal(number)
            time.sleep(0.002)
        assert job.returncode == 128 + number, console.read_text()
    deadline = time.monotonic() + 10
    while not {state(int(pid)) for pid in pids} <= {"Z", ""}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("arguments", "words"), [
    (["-n", "2", "missing.py"], "script missing.py: no such file"),
    (["-n", "2", "--epoch", "3"], "did you mean --epochs?"),
    (["-n", "2", "--mpirun", "/bin/true"], "expected Open MPI 4 or later, MPICH or Intel MPI"),
    (["-n", "2", "--mpirun", "no-such-mpirun"], "--mpirun no-such-mpirun: no such program"),
    (["-n", "3", "-H", "localhost:2"], "3 ranks and 2 slots"),
    (["-n", "2", "--device", "cuda"], "no cuda device is visible there"),
    (["-n", "2", "--config", "none.toml"], "none.toml: cannot be read"),
])  # fmt: skip
def test_refusals_come_before_anything_starts(arguments: list[str], words: str, tmp_path: Path) -> None:
    """One line, exit code 2, no output folder."""
    job = alone(["-m", "unilaunch", "launch", "--allow-run-as-root", *arguments], tmp_path)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert words in line
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("by_numpy")
def test_a_spec_in_a_file(openmpi5: Launcher, tmp_path: Path) -> None:
    """The whole job, mpirun's options too; the command line wins."""
    (tmp_path / "job.toml").write_text(
        f'nprocs = 2\nseed = 3\nallow_run_as_root = true\nmpirun = "{openmpi5.path}"\n'
        f'[options]\nepochs = 2\ndata_dir = "data"\n'
    )
    job = alone(["-m", "unilaunch", "launch", "--config", "job.toml", "--epochs", "3"], tmp_path).check()
    assert (job.result["world_size"], job.result["seed"], len(job.result["loss"])) == (2, 3, 3)
    spec = unilaunch.LaunchSpec.from_file(tmp_path / "job.toml")
    assert (spec.nprocs, spec.options["epochs"], spec.allow_run_as_root) == (2, 2, True)


def _mpiexec(name: str) -> str:
    mpiexec = Path(__file__).parents[2] / ".mpi" / name / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: see .ci/run")
    return str(mpiexec)


@pytest.mark.parametrize("name", ["mpich", "intel"])
def test_an_allocation_of_this_host_alone_needs_no_resource_manager(name: str, tmp_path: Path) -> None:
    """As in a container under Slurm, whose srun knows no cluster: Hydra would wait for it, without an end."""
    (tmp_path / "who.py").write_text("import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])\n")
    here = gethostname().partition(".")[0]
    hosts = dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), here)
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "2", **hosts}
    options = ["--mpirun", _mpiexec(name), "-n", "2", "--console", "all"]
    job = alone(["-m", "unilaunch", "launch", *options, "who.py"], tmp_path, slurm).check()
    assert sorted(job.stdout.splitlines()) == ["0 2", "1 2"]


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("launcher_name", ["mpich", "intel"])
def test_mpich_and_intel_mpi_are_launched_too(launcher_name: str, tmp_path: Path) -> None:
    """By their own words."""
    arguments = ["-n", "2", "--epochs", "3", "--data-dir", "data", "--mpirun", _mpiexec(launcher_name)]
    job = alone(["-m", "unilaunch", "launch", *arguments], tmp_path).check()
    assert job.result["launcher"] == {"mpich": "MPICH", "intel": "Intel MPI"}[launcher_name]
    shown = alone(["-m", "unilaunch", "launch", *arguments, "--dry-run", "--json"], tmp_path).check()
    assert json.loads(shown.stdout)["mpirun"]["launcher"] == job.result["launcher"]
