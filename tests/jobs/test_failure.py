"""What the fault matrix does not turn on: going on without a rank, stalls of scripts, early ends, what is reported."""

import re
from pathlib import Path

import pytest

from jobs.mpirun import Finished, Launcher, processes_in, unilaunch, wait_until

#: A `sitecustomize.py`: the monitor waits for the failures of all ranks, however late they come on a busy machine.
PATIENT = "import unilaunch.monitor.monitor as monitor\nmonitor.SETTLE = 60.0\n"
HEAD = "import os, sys, time\nrank = int(os.environ['RANK'])\n"


def _job(
    launcher: Launcher, how: str, options: list[str], folder: Path, script: str, variables: dict[str, str] | None = None
) -> Finished:
    (folder / "script.py").write_text(HEAD + script)
    if how == "mpirun":
        return launcher.unilaunch(3, ["run", *options, "script.py"], folder, variables=variables)
    return launcher.launch(3, [*options, "script.py"], folder, variables)


@pytest.mark.parametrize(("launcher", "how", "code", "end"), [
    ("4.1", "launch", 137, "os.kill(os.getpid(), 9)"),
    ("4.1", "mpirun", 7,
     "import threading; threading.Thread(target=time.sleep, args=(600,)).start(); sys.exit(7)"),
    ("5.0", "mpirun", 137, "os.kill(os.getpid(), 9)"),
], indirect=["launcher"])  # fmt: skip
def test_the_others_can_go_on(launcher: Launcher, how: str, code: int, end: str, tmp_path: Path) -> None:
    """With --no-abort; the job still ends, with the failure's exit code, and still reports.

    Each mpirun alone would end the others, at a signal or an exit code; launch's agents answer for their ranks.
    """
    script = f"if rank == 1: {end}\ntime.sleep(2)\nopen(f'done.{{rank}}', 'w').close()\n"
    job = _job(launcher, how, ["--no-abort"], tmp_path, script)
    assert job.returncode == code
    assert sorted(path.name for path in tmp_path.glob("done.*")) == ["done.0", "done.2"]
    assert any(line.startswith("unilaunch: rank 1 on ") for line in job.refusals())


def test_a_program_that_ends_after_a_failure_keeps_what_it_has_written(tmp_path: Path) -> None:
    """With --no-abort the job ends with its last program, also while that rank still prepares its own end.

    The file is not closed, and only the end of the interpreter would destroy what holds it.
    """
    (tmp_path / "script.py").write_text(
        f"{HEAD}import signal\nnative = signal.signal\n"
        "def slow(*words):\n    time.sleep(1)\n    return native(*words)\n"
        "if rank == 1: sys.exit(3)\n"
        "time.sleep(1)\nfile = open('result', 'w')\nfile.write('done')\nsignal.signal = slow\n"
    )
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", "--no-abort", "script.py"], tmp_path)
    assert job.returncode == 3
    assert (tmp_path / "result").read_text() == "done"


@pytest.mark.parametrize("how", ["mpirun", "launch"])
def test_what_all_ranks_share_is_said_once(openmpi5: Launcher, how: str, tmp_path: Path) -> None:
    """With the script's own frames; each rank's log has them, after what the rank has written."""
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    script = "print('reading', file=sys.stderr)\nprint('data', file=sys.stderr)\nimport no_such_module\n"
    job = _job(openmpi5, how, [], tmp_path, script, {"PYTHONPATH": str(tmp_path)})
    assert job.returncode == 1
    begin = "Traceback (most recent call last):\n"
    (trace,) = (text.partition("unilaunch: ")[0] for text in job.console.split(begin)[1:])
    said = "ModuleNotFoundError: No module named 'no_such_module'"
    assert [line.split(",")[0].strip() for line in trace.splitlines()] == [
        f'File "{tmp_path / "script.py"}"', "import no_such_module", said
    ]  # fmt: skip
    assert job.refusals()[0].startswith(f"unilaunch: all 3 ranks: {said}")
    assert [job.said(rank, "stderr") for rank in range(3)] == [f"reading\ndata\n{begin}{trace}"] * 3


@pytest.mark.timed
@pytest.mark.parametrize("how", ["mpirun", "launch"])
def test_a_script_that_stalls_shows_where(openmpi5: Launcher, how: str, tmp_path: Path) -> None:
    """Every rank's place, the same ones together; exit code 124. Output is progress."""
    script = (
        f"def load_part():\n    while True: {'pass' if how == 'launch' else 'time.sleep(0.01)'}\n"
        "def all_reduce():\n    time.sleep(60)\n"
        "for step in range(8):\n    print(step, flush=True); time.sleep(0.5)\n"
        "load_part() if rank == 1 else all_reduce()\n"
    )
    job = _job(openmpi5, how, ["--stall-timeout", "3"], tmp_path, script)
    assert job.returncode == 124
    assert job.seconds > 6
    assert "ranks 0, 2: all_reduce (script.py:6) < <module> (script.py:9)" in job.console
    assert "rank 1: load_part (script.py:4)" in job.console
    assert [group["ranks"] for group in job.report["stacks"]] == [[0, 2], [1]]


@pytest.mark.timed
def test_a_rank_that_others_await_is_stuck_whatever_they_write(tmp_path: Path) -> None:
    """The report names it, and says who waits for it."""
    (tmp_path / "stuck.py").write_text(
        "import os, threading, time\nimport torch, torch.distributed as dist\n"  # once for all ranks: quickly
        "def talk():\n    while True: print('still here', flush=True); time.sleep(2)\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: time.sleep(120)\n"
        "threading.Thread(target=talk, daemon=True).start()\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    words = ["--launcher", "direct", "-n", "3", "--stall-timeout", "10", "stuck.py"]
    job = unilaunch(["launch", *words], tmp_path)
    assert job.returncode == 124
    assert job.seconds < 80
    assert re.search(r"for \d+ s: rank 1 is awaited by ranks 0, 2: the job is ended", job.stderr)


SAVING = (
    "import atexit, signal, threading\n"
    "def note(name, seconds=3):\n    time.sleep(seconds); open(name, 'w').close()\n"
    "def handle(*_):\n    note('saved'); sys.exit(4)\n"
    "if rank == 0:\n"
    "    signal.signal(signal.SIGTERM, handle)\n    assert signal.getsignal(signal.SIGTERM) is handle\n"
    "    open('ready', 'w').close()\n    time.sleep(60)\n"
    "if rank == 1:\n"
    "    if not sys.argv[1:]: atexit.register(note, 'uploaded')\n"
    "    threading.Thread(target=note, args=('written', 1)).start()\n"
    "    while not os.path.exists('ready'): time.sleep(0.05)\n"
    "    raise ValueError('broken on purpose')\n"
    "time.sleep(60)\n"
)


@pytest.mark.timed
@pytest.mark.parametrize("start", ["direct", "mpirun"])
def test_after_a_failure_ranks_that_save_have_the_grace(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """A handler of SIGTERM; threads and exit functions of the failed rank; the third rank has none, and is ended.

    Saving that takes longer is cut off, and that is said. There the failed rank has a thread alone.
    """
    (tmp_path / "save.py").write_text(HEAD + SAVING)
    words = ["launch", "-n", "3", *(openmpi5.options if start == "mpirun" else ["--launcher", "direct"])]
    job = unilaunch([*words, "save.py"], tmp_path)
    assert job.returncode == 1
    told, verdict, *_ = job.refusals()
    assert verdict.startswith("unilaunch: rank 1 on ")
    assert "ValueError: broken on purpose" in verdict
    assert re.search("; ranks? [01](-1)? ha(s|ve) 30 s to save$", told)
    assert {"saved", "written", "uploaded"} <= {path.name for path in tmp_path.iterdir()}
    assert job.seconds < 15
    for name in ("ready", "saved", "written"):
        (tmp_path / name).unlink()
    late = unilaunch([*words, "--grace", "2", "save.py", "--", "no exit function"], tmp_path)
    assert late.returncode == 1
    assert [(tmp_path / name).exists() for name in ("saved", "written")] == [False, True]
    assert "did not end within the 2 s of --grace: killed" in late.console


@pytest.mark.parametrize(("end", "code"), [("sys.exit(0)", 0), ("raise ValueError('broken on purpose')", 1)])
def test_a_program_that_closes_every_descriptor_ends_as_in_plain_python(end: str, code: int, tmp_path: Path) -> None:
    """A failure is still shown and is that of its rank, though the connections to the agent are closed, too."""
    (tmp_path / "close.py").write_text(f"{HEAD}os.closerange(3, 256)\nif rank == 1: {end}\n")
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", "close.py"], tmp_path)
    assert job.returncode == code
    assert [job.said(rank, "stderr").count("ValueError: broken on purpose") for rank in range(2)] == [0, code]
    assert all("rank 1" in line for line in job.refusals() if "failed" in line)


@pytest.mark.timed
def test_a_bare_mpirun_has_one_verdict(launcher: Launcher, tmp_path: Path) -> None:
    """Printed once, by rank 0's guard; who failed, at what, and where its log is; the job's exit code is his."""
    script = "print('working', file=sys.stderr)\ntime.sleep(0.2)\nif rank == 2: os._exit(9)\ntime.sleep(60)\n"
    job = _job(launcher, "mpirun", [], tmp_path, script)
    assert job.returncode == 9
    assert job.seconds < 30
    assert sum("failed" in line for line in job.refusals()) == 1
    failure = job.failure(2)
    assert (failure["exit_code"], failure["phase"], failure["last_lines"]) == (9, "program", ["working"])
    assert job.report["first"] == failure
    wait_until(lambda: not list(processes_in(tmp_path)), 10)  # an agent may outlive mpirun for a moment


CRASH = """
import ctypes, os, sys, warnings; warnings.simplefilter("ignore")  # of a fork beside Open MPI 4's thread, Python 3.12
def crash():
    print("before it", file=sys.stderr, flush=True)
    ctypes.string_at(0)
if os.environ["RANK"] == "0":
    if not os.fork():
        crash()
    print("a child of it ended by", os.wait()[1] & 0x7F, file=sys.stderr, flush=True)
    crash()
"""


def test_a_crash_shows_the_programs_frames_only(openmpi5: Launcher, tmp_path: Path) -> None:
    """A library's crash, in a rank and in a process that it forks: after its output, without unilaunch's frames."""
    (tmp_path / "crash.py").write_text(CRASH)
    job = openmpi5.unilaunch(2, ["run", "crash.py"], tmp_path)
    assert job.returncode == 139
    for text in (job.said(0, "stderr"), job.stderr):
        assert text.count("Fatal Python error: Segmentation fault") == 2, text
        assert text.count('crash.py", line 5 in crash') == 2
        assert all(f'crash.py", line {line} in <module>' in text for line in (8, 10))
        assert "/unilaunch/" not in text.replace(str(job.output), "")
        assert "frozen runpy" not in text
    assert job.said(0, "stderr").startswith("before it\n")
    assert "Fatal Python error" in "".join(job.failure(0)["last_lines"])
