"""`unilaunch launch` and `unilaunch.launch(spec)` on this host: by an mpirun, and with nothing but Python."""

import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import unilaunch
from jobs.conftest import find_launcher
from jobs.mpirun import Finished, Launcher, alone, finish, wait_until
from unilaunch.agent.processes import children

ENDING = str(Path(__file__).parent / "programs" / "ending.py")
LAUNCH = [sys.executable, "-m", "unilaunch", "launch"]
SAY = "import os\nprint(f\"I am {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\")\n"
CORES = "import os\nprint(sorted(os.sched_getaffinity(0)))\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`unilaunch.launch` starts programs in the current one, where they leave files."""
    monkeypatch.chdir(tmp_path)


def _launch(words: str, folder: Path, program: str = SAY, **variables: str) -> Finished:
    """Launch *program*, which is train.py, with nothing but Python."""
    (folder / "train.py").write_text(program)
    return finish([*LAUNCH, *shlex.split(words)], folder, variables)


def _spec(launcher: Launcher, folder: Path, **fields: object) -> unilaunch.LaunchSpec:
    mpi = {"mpirun": launcher.path, "allow_run_as_root": True, "oversubscribe": True}
    return unilaunch.LaunchSpec.model_validate({**mpi, "output_dir": folder / "log_output", **fields})


def test_a_script_needs_nothing_but_python(tmp_path: Path) -> None:
    """No mpirun in PATH, any number of ranks, as any user: each is told who it is, and has its own log."""
    program = (
        "import json, os, sys\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'PMI_RANK', 'PMIX_RANK')\n"
        "print(json.dumps([[os.environ.get(name) for name in names], sys.argv[1:]]))\n"
    )
    job = _launch("-n 5 train.py --lr 0.1", tmp_path, program, PATH="/nowhere", PMI_RANK="3", PMIX_RANK="3").check()
    logs = [json.loads(job.said(rank)) for rank in range(5)]
    assert logs == [[[str(rank), "5", str(rank), "5", None, None], ["--lr", "0.1"]] for rank in range(5)]
    (tools := tmp_path / "tools").mkdir()
    (tools / "tool").write_text(f"#!/usr/bin/env python3\n{program}")  # as torchrun's --no-python starts it
    (tools / "tool").chmod(0o755)
    assert '["--x"]' in _launch("-n 2 tool --x", tmp_path, PATH=f"{tools}:/usr/bin").check().stdout


def test_the_line_of_a_dry_run_can_be_typed_and_holds_no_secret(tmp_path: Path) -> None:
    """It starts the same ranks in the same way."""
    (tmp_path / "job.toml").write_text('target = "train.py"\nnprocs = 2\nconsole = "all"\n[env]\nAPI_KEY = "hidden"\n')
    program = "import os\nprint(os.environ['RANK'], os.environ['API_KEY'])\n"
    line = _launch("--config job.toml --dry-run", tmp_path, program).check().stdout.splitlines()[0]
    assert "hidden" not in line
    job = finish(["sh", "-c", line], tmp_path, {"API_KEY": "exported"}).check()
    assert sorted(job.stdout.splitlines()) == ["0 exported", "1 exported"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_processors_are_shared_out(tmp_path: Path) -> None:
    """One core for each of two ranks, unless the user wants none bound."""
    allowed = sorted(os.sched_getaffinity(0))
    seen = {}
    for option in ("", "--bind-to none"):
        job = _launch(f"-n 2 {option} train.py", tmp_path, CORES).check()
        seen[option] = [json.loads(job.said(rank)) for rank in range(2)]
    assert sorted(seen[""][0] + seen[""][1]) == allowed
    assert seen["--bind-to none"] == [allowed, allowed]


def test_a_single_rank_of_mpirun_has_every_core_and_an_empty_input(launcher: Launcher, tmp_path: Path) -> None:
    """Open MPI would bind it to one. As in a job of Slurm's, cron's or ssh's, with the input closed."""
    (tmp_path / "ask.py").write_text(f"{CORES}import sys\nprint(os.environ['OMP_NUM_THREADS'], [sys.stdin.read()])\n")
    mine = sorted(os.sched_getaffinity(0))
    for redirection in ("</dev/null", "<&-"):
        line = ["sh", "-c", f'exec "$@" {redirection}', "sh", *LAUNCH, *launcher.options[:-1], "-n", "1", "ask.py"]
        assert finish(line, tmp_path, None).check().stdout == f"{mine}\n{len(mine)} ['']\n"


def test_variables_folder_and_labels_of_the_ranks(tmp_path: Path) -> None:
    """-x, which wins over the shell, and --cwd; also what Python reads at its start, and PATH; torchrun's --tee 3."""
    (below := tmp_path / "below").mkdir()
    program = "import os, sys\nprint(sys.flags.hash_randomization, os.getcwd(), os.environ['A'], os.environ['PATH'])\n"
    words = "-n 2 --tee 3 -x PYTHONHASHSEED=0 -x A=b -x PATH=/there --cwd below train.py"
    job = _launch(words, tmp_path, program + "print('c', file=sys.stderr)\n", A="shell").check()
    assert sorted(job.stdout.splitlines()) == [f"[{rank}] 0 {below} b /there" for rank in range(2)]
    assert sorted(job.stderr.splitlines()) == ["[0] c", "[1] c"]
    assert job.said(1) == f"0 {below} b /there\n"


def test_an_allocation_of_this_host_takes_the_ranks_that_are_typed(tmp_path: Path) -> None:
    """A task of Slurm may have the whole node. Rank 0 is shown, all is kept where UNILAUNCH_OUTPUT_DIR says."""
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": socket.gethostname(), "SLURM_TASKS_PER_NODE": "1"}
    elsewhere = {"UNILAUNCH_OUTPUT_DIR": "elsewhere"}
    assert _launch("-n 3 train.py", tmp_path, **slurm, **elsewhere).check().stdout == "I am 0 of 3\n"
    for look, said in (("logs", "I am 2 of 3"), ("status", "rank"), ("report", "elsewhere/report.html")):
        assert said in alone(["-m", "unilaunch", look], tmp_path, elsewhere).check().stdout


@pytest.mark.parametrize(("program", "options", "code", "expected"), [
    ("import mpi4py\n", "--dry-run", 0, "imports mpi4py"),
    ("import torch\n", "--dry-run", 0, "nothing needs mpirun"),
    ("import torch\n", "--dry-run --mca btl self", 0, "--mca is an option of mpirun"),
    ("import torch\n", "--launcher direct -H elsewhere:2", 2, "elsewhere is another host"),
    ("__import__('mpi4py.MPI')\n", "", 2, "--launcher mpirun"),
    ("__import__('mpi4py')\nprint('by the users wish')\n", "--launcher direct", 0, "by the users wish"),
], ids=str)  # fmt: skip
def test_programs_of_mpi_get_an_mpirun(program: str, options: str, code: int, expected: str, tmp_path: Path) -> None:
    """It is chosen by what a program imports; what is imported in another way is refused, not run as rank 0 of 1."""
    job = _launch(f"-n 2 {options} train.py", tmp_path, program)
    assert (job.returncode, expected in job.console) == (code, True), job.console


def test_many_ranks_with_few_open_files(openmpi5: Launcher, tmp_path: Path) -> None:
    """The soft limit is raised as far as the ranks need; a hard one is said, with what to raise."""
    (tmp_path / "train.py").write_text(SAY)
    for limits, is_said in (("64:4096", False), ("64:64", True)):
        line = ["prlimit", f"--nofile={limits}", *LAUNCH, "-n", "12", *openmpi5.options, "train.py"]
        job = finish(line, tmp_path, None)
        assert ("ulimit -Hn allows 64 open files, and 12 ranks need up to" in job.console) == is_said
        assert is_said or job.check()


@pytest.mark.parametrize("start", ["direct", "5.0"])
@pytest.mark.usefixtures("by_numpy")
def test_a_program_can_launch(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """What comes back is the model's result, and how each rank ended; no process of the caller's is left."""
    direct = unilaunch.LaunchSpec.model_validate({"launcher": "direct", "nprocs": 2})
    spec, before = direct if start == "direct" else _spec(openmpi5, tmp_path, nprocs=2), children()
    result = unilaunch.launch(spec, epochs=3, data_dir=str(tmp_path))
    assert children() == before
    assert result.result
    assert (result.returncode, result.failure, len(result.result["loss"])) == (0, None, 3)  # type: ignore[arg-type]
    assert [(rank.rank, rank.device, rank.returncode) for rank in result.ranks] == [(0, "cpu", 0), (1, "cpu", 0)]
    assert all((rank.log_dir / "stderr").exists() for rank in result.ranks)


def test_the_first_failure_is_the_jobs(launcher: Launcher, tmp_path: Path) -> None:
    """Its exit code, its words, and nothing of the others'."""
    job = launcher.launch(3, [ENDING, "--", "exit"], tmp_path)
    assert (job.returncode, "non-zero" in job.console) == (7, False)  # mpirun's own words, which name another rank
    assert any(line.startswith("unilaunch: rank 1 on ") and "exit code 7" in line for line in job.refusals())


def test_a_failure_is_an_exception(openmpi5: Launcher, tmp_path: Path) -> None:
    """With what the rank raised; an error that all ranks share is all ranks'."""
    spec = _spec(openmpi5, tmp_path, nprocs=3, target=ENDING, args=["raise"])
    with pytest.raises(unilaunch.JobFailed, match=r"rank 1 on .* failed.*: .*broken on purpose") as failed:
        unilaunch.launch(spec)
    assert (failure := failed.value.failure)
    assert (failure.rank, failure.message, failed.value.exit_code) == (1, "broken on purpose", 1)
    with pytest.raises(unilaunch.JobFailed, match=r"^all 3 ranks: --interface none0: "):
        unilaunch.launch(spec.model_copy(update={"interface": "none0"}))


def test_jobs_in_jobs(openmpi5: Launcher, tmp_path: Path) -> None:
    """Ranks that would each start the job are refused; what a rank starts itself has ranks of its own."""
    words = ["launch", "-n", "2", *openmpi5.options, "--output-dir", "own", "--console", "all", "train.py"]
    (tmp_path / "outer.py").write_text(f"import subprocess\nsubprocess.run({[*LAUNCH[:-1], *words]!r}, check=True)\n")
    job = _launch("-n 1 outer.py", tmp_path).check()
    outer = openmpi5.unilaunch(2, words, tmp_path)
    said = [words in outer.console for words in ("has started 2 processes of `unilaunch launch`", "I am")]
    assert (outer.returncode, said) == (2, [True, False])
    assert sorted(job.stdout.splitlines()) == ["I am 0 of 2", "I am 1 of 2"]


#: The last line comes late, and the reader is slow at first: a pipe to it has room for a part of a piece only.
WHOLE = (
    "import hashlib, os, time\nread = b''\n"
    "while piece := os.read(0, 10_000 if len(read) < 500_000 else 1 << 20):\n"
    "    read += piece\n    time.sleep(0.01 * (len(read) < 500_000))\n"
    "print(os.environ['RANK'], len(read), hashlib.sha256(read).hexdigest())\n"
)
ONE_LINE = "import os, sys\nif os.environ['RANK'] == '0':\n    print(sys.stdin.readline().strip())\n"
LINES = "".join(f"{number}\n" for number in range(1, 1_000_001)) + "END\n"


@pytest.mark.parametrize("start", ["direct", "4.1", "5.0"])
def test_input_arrives_whole_and_ends(start: str, tmp_path: Path) -> None:
    """Seven megabytes at rank 0; the other ranks read an empty input. A program need not read it, nor need it end."""
    options = ["--launcher", "direct"] if start == "direct" else find_launcher(start).options
    line = shlex.join([*LAUNCH, "-n", "2", "--console", "all", *options, "read.py"])
    whole, empty = (hashlib.sha256(text.encode()).hexdigest() for text in (LINES, ""))
    for source, script, said in (
        ("(seq 1000000; sleep 1; echo END)", WHOLE, [f"0 {len(LINES)} {whole}", f"1 0 {empty}"]),
        ("yes", ONE_LINE, ["y"]),
    ):
        (tmp_path / "read.py").write_text(script)
        job = finish(["sh", "-c", f"{source} | {line}"], tmp_path, None).check()
        assert sorted(job.stdout.splitlines()) == said


def _left(folder: Path) -> list[bytes]:
    """Return the processes of a job: those with its folder in their environment."""
    left = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"JOB_OF_TEST={folder}\0".encode() in (path / "environ").read_bytes():
                left.append((path / "cmdline").read_bytes())
    return [line for line in left if line]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("victim", ["launch", "guard", "agent", "rank"])
def test_nothing_outlives_the_job(victim: str, number: signal.Signals, tmp_path: Path) -> None:
    """Whatever is killed: neither a rank stays nor what a rank has started in a session of its own."""
    (tmp_path / "train.py").write_text(
        "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    environ = {**os.environ, "JOB_OF_TEST": str(tmp_path)}  # noqa: TID251
    line, pipe = [*LAUNCH, "-n", "2", "--console", "all", "--grace", "1", "train.py"], subprocess.PIPE
    with subprocess.Popen(line, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe) as launch:
        assert launch.stdout
        assert [launch.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        processes = {"launch": launch.pid}
        for above, below in (("launch", "guard"), ("guard", "agent"), ("agent", "rank")):
            processes[below] = children(processes[above])[0]
        os.kill(processes[victim], number)
        assert launch.wait(30) in {128 + number, -number}
        wait_until(lambda: not _left(tmp_path), 20)
