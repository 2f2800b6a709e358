"""A direct start: `launch` starts the ranks of this host itself, with nothing but Python."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import unilaunch
from jobs.mpirun import Finished, alone, finish, wait_until
from unilaunch.agent.processes import children

LAUNCH = ["-m", "unilaunch", "launch"]


def _launch(words: str, folder: Path, **variables: str) -> Finished:
    return alone([*LAUNCH, *words.split()], folder, variables)


def test_a_script_needs_nothing_but_python(tmp_path: Path) -> None:
    """No mpirun in PATH, any number of ranks, as any user: each is told who it is, and has its own log."""
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'PMI_RANK', 'PMIX_RANK')\n"
        "print(json.dumps([[os.environ.get(name) for name in names], sys.argv[1:]]))\n"
    )
    job = _launch("-n 5 train.py --lr 0.1", tmp_path, PATH="/nowhere", PMI_RANK="3", PMIX_RANK="3").check()
    logs = [json.loads((job.output / f"rank.{rank}" / "stdout").read_text()) for rank in range(5)]
    assert logs == [[[str(rank), "5", str(rank), "5", None, None], ["--lr", "0.1"]] for rank in range(5)]


def test_ranks_that_would_each_start_the_job_are_refused(tmp_path: Path) -> None:
    """The ranks' program is `launch` itself; a script of theirs may start other jobs."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    job = _launch("-n 2 -m unilaunch launch -n 1 --output-dir inner train.py", tmp_path)
    assert (job.returncode, "has started 2 processes of `unilaunch launch`" in job.console) == (2, True)
    assert "trained" not in job.console


def test_the_line_of_a_dry_run_can_be_typed_and_holds_no_secret(tmp_path: Path) -> None:
    """It starts the same ranks in the same way."""
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['RANK'], os.environ['API_KEY'])\n")
    (tmp_path / "job.toml").write_text('target = "train.py"\nnprocs = 2\nconsole = "all"\n[env]\nAPI_KEY = "hidden"\n')
    line = _launch("--config job.toml --dry-run", tmp_path).check().stdout.splitlines()[0]
    assert "hidden" not in line
    job = finish(["sh", "-c", line], tmp_path, {"API_KEY": "exported"}).check()
    assert sorted(job.stdout.splitlines()) == ["0 exported", "1 exported"]


def test_processors_are_shared_out(tmp_path: Path) -> None:
    """One core for each of two ranks, unless the user wants none bound."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    (tmp_path / "cores.py").write_text("import os\nprint(sorted(os.sched_getaffinity(0)))\n")
    seen = {}
    for option in ("", "--bind-to none"):
        job = _launch(f"-n 2 {option} cores.py", tmp_path).check()
        seen[option] = [json.loads((job.output / f"rank.{rank}" / "stdout").read_text()) for rank in range(2)]
    assert sorted(seen[""][0] + seen[""][1]) == allowed
    assert seen["--bind-to none"] == [allowed, allowed]


def test_variables_and_folder_of_the_ranks(tmp_path: Path) -> None:
    """As under mpirun: -x, which wins over the shell, and --cwd; also what Python reads at its start, and PATH."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "train.py").write_text(
        "import os, sys\nprint(sys.flags.hash_randomization, os.getcwd(), os.environ['A'], os.environ['PATH'])\n"
    )
    job = _launch(
        "-n 2 --console all -x PYTHONHASHSEED=0 -x A=b -x PATH=/there --cwd below below/train.py", tmp_path, A="shell"
    ).check()
    assert job.stdout.splitlines() == [f"0 {tmp_path / 'below'} b /there"] * 2


def test_lines_behind_the_rank(tmp_path: Path) -> None:
    """As torchrun's --tee 3; the files have the program's own text."""
    (tmp_path / "train.py").write_text("import os, sys\nprint('a\\nb')\nprint('c', file=sys.stderr)\n")
    job = _launch("-n 2 --tee 3 train.py", tmp_path).check()
    assert sorted(job.stdout.splitlines()) == ["[0] a", "[0] b", "[1] a", "[1] b"]
    assert sorted(job.stderr.splitlines()) == ["[0] c", "[1] c"]
    assert (job.output / "rank.1" / "stdout").read_text() == "a\nb\n"


def test_a_program_of_path_in_python(tmp_path: Path) -> None:
    """As `torchrun --no-python` starts a package's command; another program is answered in one line."""
    (tool := tmp_path / "a-tool").write_text(
        "#!/usr/bin/env python3\nimport os, sys\nprint(os.environ['RANK'], sys.argv)\n"
    )
    (other := tmp_path / "another").write_text("#!/bin/sh\necho\n")
    for file in (tool, other):
        file.chmod(0o755)
    path = f"{tmp_path}:/usr/bin"
    (folder := tmp_path / "elsewhere").mkdir()
    assert _launch("-n 2 a-tool --x", folder, PATH=path).check().stdout == f"0 ['{tool}', '--x']\n"
    job = _launch("-n 2 another", folder, PATH=path)
    assert (job.returncode, job.stderr.count("\n")) == (2, 1)


def test_an_allocation_of_this_host_takes_the_ranks_that_are_typed(tmp_path: Path) -> None:
    """A task of Slurm may have the whole node. Without one there may be a rank for each core."""
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": socket.gethostname(), "SLURM_TASKS_PER_NODE": "1"}
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['WORLD_SIZE'])\n")
    assert _launch("-n 3 train.py", tmp_path, **slurm).check().stdout == "3\n"
    assert int(_launch("--nproc-per-node cpu train.py", tmp_path).check().stdout) >= 1


@pytest.mark.parametrize(("program", "options", "code", "expected"), [
    ("import mpi4py\n", "--dry-run", 0, "imports mpi4py"),
    ("import torch\n", "--dry-run", 0, "nothing needs mpirun"),
    ("import torch\n", "--dry-run --mca btl self", 0, "--mca is an option of mpirun"),
    ("import torch\n", "--launcher direct -H elsewhere:2", 2, "elsewhere is another host"),
    ("__import__('mpi4py.MPI')\n", "", 2, "--launcher mpirun"),
    ("import importlib.util as u\nprint(u.find_spec('mpi4py') is not None)\n", "", 0, "True"),
    ("__import__('mpi4py')\nprint('by the users wish')\n", "--launcher direct", 0, "by the users wish"),
], ids=str)  # fmt: skip
def test_programs_of_mpi_get_an_mpirun(program: str, options: str, code: int, expected: str, tmp_path: Path) -> None:
    """It is chosen by what a program imports; what is imported in another way is refused, not run as rank 0 of 1."""
    (tmp_path / "train.py").write_text(program)
    job = _launch(f"-n 2 {options} train.py", tmp_path)
    assert job.returncode == code, job.console
    assert expected in job.console


def test_a_job_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller keeps its children and its signals: it starts one process, which is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def main(rate):\n    return rate * 2\n")
    before = children()
    result = unilaunch.launch("train.py:main", nprocs=3, rate=4, launcher="direct")
    assert [rank.value for rank in result.ranks] == [8, 8, 8]
    assert children() == before


_LEAVES = (
    "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('up', flush=True)\n"
    "time.sleep(600)\n"
)


def _left(folder: Path) -> list[bytes]:
    """Return the processes of a job: those with its folder in their environment."""
    left = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"JOB_OF_TEST={folder}\0".encode() in (path / "environ").read_bytes():
                left.append((path / "cmdline").read_bytes())
    return [line for line in left if line]


@pytest.mark.parametrize("words", ["-n 2 train.py", "-n 2 --oversubscribe --map-by core train.py", "-n 0 train.py"])
def test_nothing_outlives_a_job_that_is_refused(words: str, tmp_path: Path) -> None:
    """The guard starts before the job is planned."""
    job = _launch(words, tmp_path, JOB_OF_TEST=str(tmp_path), PATH="/nowhere")
    assert (job.returncode, _left(tmp_path)) == (2, [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("victim", ["launch", "guard", "agent", "rank"])
def test_nothing_outlives_the_job(victim: str, number: signal.Signals, tmp_path: Path) -> None:
    """Whatever is killed: neither a rank stays nor what a rank has started in a session of its own."""
    (tmp_path / "train.py").write_text(_LEAVES)
    environ = {**os.environ, "JOB_OF_TEST": str(tmp_path)}  # noqa: TID251
    line = [sys.executable, *LAUNCH, "-n", "2", "--console", "all", "--grace", "1", "train.py"]
    with subprocess.Popen(line, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launch:
        assert launch.stdout
        assert launch.stderr
        assert [launch.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        processes = {"launch": launch.pid}
        for above, below in (("launch", "guard"), ("guard", "agent"), ("agent", "rank")):
            processes[below] = children(processes[above])[0]
        os.kill(processes[victim], number)
        assert launch.wait(30) in {128 + number, -number}
        wait_until(lambda: not _left(tmp_path), 20)


@pytest.mark.parametrize(("table", "line"), [
    ("mpirun", ["run", "first.py"]), ("direct", ["launch", "-n", "1", "first.py"])
])  # fmt: skip
def test_the_way_to_the_first_line_is_as_the_page_for_contributors_lists_it(
    table: str, line: list[str], tmp_path: Path
) -> None:
    """docs/architecture.md names the functions that stand above a script's first line, in order."""
    (tmp_path / "first.py").write_text(
        "import json, sys\n"
        "frame, above = sys._getframe(1), []\n"
        "while frame:\n"
        "    above.insert(0, [frame.f_code.co_filename, frame.f_code.co_name])\n"
        "    frame = frame.f_back\n"
        "print(json.dumps(above))\n"
    )
    job = alone(["-m", "unilaunch", *line], tmp_path, {}).check()
    root = f"{Path(unilaunch.__file__).parent}/"
    above = [[file.removeprefix(root), name] for file, name in json.loads(job.said(0)) if file.startswith(root)]
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
    rows = [row.split("|") for row in text.partition(f"<!-- stack: {table} -->\n")[2].partition("\n\n")[0].splitlines()]
    listed = [[row[1].strip(" `"), name.strip(" `")] for row in rows[2:] for name in row[2].split(",")]
    assert above[1 : len(listed) + 1] == listed  # above[0] is __main__.py


def test_the_commands_that_look_find_the_folder_where_jobs_write(tmp_path: Path) -> None:
    """UNILAUNCH_OUTPUT_DIR is for both."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    elsewhere = {"UNILAUNCH_OUTPUT_DIR": "elsewhere"}
    _launch("-n 2 train.py", tmp_path, **elsewhere).check()
    for command, said in (("logs", "trained"), ("status", "rank"), ("report", "elsewhere/report.html")):
        assert said in alone(["-m", "unilaunch", command], tmp_path, elsewhere).check().stdout
