"""`unilaunch.launch` and `unilaunch.start` as people write them in Python, under a real mpirun."""

import json
import os
from pathlib import Path
from textwrap import indent

import pytest

from jobs.mpirun import Launcher, alone

PROGRAMS = Path(__file__).parent / "programs"
ROOT = {"UNILAUNCH_ALLOW_RUN_AS_ROOT": "1"}


def test_a_script_launches_functions(openmpi5: Launcher, tmp_path: Path) -> None:
    """Arrays in and out, jobs side by side and from a thread, logs, status, cancel, Ctrl-C; nothing is left behind."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job = alone([str(PROGRAMS / "launching.py"), str(openmpi5.path)], tmp_path, {"TMPDIR": str(temporary)}).check()
    (line,) = (line for line in job.stdout.splitlines() if line.startswith("{"))
    seen = json.loads(line)
    for rank in range(2):
        doubled = [[0 + rank, 2 + rank, 4 + rank], [6 + rank, 8 + rank, 10 + rank]]
        assert seen["train"][rank] == [doubled, "int16", [1.0, 1.0], ["__mp_main__", "here", "/"]]
    assert seen["lines"] == seen["logs"] == ["asleep 0", "asleep 1"]
    assert seen["status"] == ["running", ["running", "running"]]
    assert "first still runs after 0.1 s" in seen["timeout"]
    assert seen["cancelled"][:3] == ["stopped", True, 143]
    assert "the job was stopped (exit code 143)" in seen["cancelled"][3]
    assert (seen["by_thread"], seen["interrupted"]) == ([3, 3], "stopped")
    assert seen["elsewhere"] == [[5, 5], [[[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 11]]]]
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]
    assert (tmp_path / "train" / "rank.1" / "value.0.npy").exists()
    for rank in range(2):  # the job that still ran at the end of the script was stopped
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"pid.{rank}").read_text()), 0)
    assert not list(temporary.glob("unilaunch-*"))


def test_the_pages_on_python_run(tmp_path: Path) -> None:
    """As they stand there: the script of docs/python.md; then that of the page for notebooks, and a job that runs."""
    docs = Path(__file__).parents[2] / "docs"
    first, job_that_runs = (text.split("```")[0] for text in (docs / "python.md").read_text().split("```python\n")[1:3])
    function = (docs / "start" / "notebook.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "first.py").write_text(first)
    job = alone(["first.py"], tmp_path, ROOT).check()
    found = [line.split(maxsplit=2)[2] for line in job.stdout.splitlines()[-2:]]
    assert found == ["2.25 [0. 2. 4. 6. 8.]", "2.25 [1. 3. 5. 7. 9.]"]
    # In one piece: unbuffered, print writes word by word, and a line that takes a second is shown in parts.
    (tmp_path / "train.py").write_text("import sys\nsys.stdout.write(' '.join(sys.argv[1:]) + '\\n')\n")
    (tmp_path / "second.py").write_text(function + indent(job_that_runs, "    ") + "    print(result.returncode)\n")
    assert {"[4.0, 5.0]", "--lr 0.1", "0"} <= {*alone(["second.py"], tmp_path, ROOT).check().stdout.splitlines()}


def test_a_launch_outside_the_main_block_is_refused_in_the_ranks(tmp_path: Path) -> None:
    """Or else every rank would launch the job again."""
    call = "unilaunch.launch(work, nprocs=2, allow_run_as_root=True, oversubscribe=True)"
    (tmp_path / "careless.py").write_text(f"import unilaunch\ndef work(): return 1\n{call}\n")
    for line in (["careless.py"], ["-m", "careless"]):
        job = alone(line, tmp_path)
        assert 'call launch under if __name__ == "__main__":' in job.stderr
        assert (job.returncode, "unilaunch.folder.result.JobFailed: " in job.stderr.splitlines()[-1]) == (1, True)


def test_a_function_of_a_file_on_the_command_line(openmpi5: Launcher, tmp_path: Path) -> None:
    """FILE.py:function, in another folder."""
    (tmp_path / "train.py").write_text("from pathlib import Path\ndef main(n): return [n, str(Path.cwd())]\n")
    (tmp_path / "data").mkdir()
    job = openmpi5.launch(2, ["-wdir", "data", "train.py:main", "--", "n=3"], tmp_path).check()
    assert json.loads((job.output / "rank.1" / "value.json").read_text()) == [3, str(tmp_path / "data")]


def test_a_job_that_runs_at_the_callers_end_has_its_grace(tmp_path: Path) -> None:
    """Python 3.12 starts no thread there."""
    (tmp_path / "slow.py").write_text(
        "import signal, sys, time\ndef stop(*_):\n    time.sleep(2)\n    open('saved', 'w').close()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nopen('ready', 'w').close()\ntime.sleep(60)\n"
    )
    (tmp_path / "caller.py").write_text(
        "import os, time, unilaunch\njob = unilaunch.start('slow.py', nprocs=1, grace=20, allow_run_as_root=True)\n"
        "while not os.path.exists('ready'): time.sleep(0.1)\n"
    )
    assert "SIGTERM: the ranks have 20 s to end" in alone(["caller.py"], tmp_path).check().stderr
    assert (tmp_path / "saved").exists()
