"""How jobs end, beside the fault matrix: without a rank, stalled, in different calls; and no written byte is lost."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.mpirun import Finished, Launcher, alone, processes_in, unilaunch, wait_until

WRITING, MIXED, UNEQUAL = (
    str(Path(__file__).parent / "programs" / f"{name}.py") for name in ("writing", "mixed_calls", "unequal")
)
#: A `sitecustomize.py`: the monitor waits for the failures of all ranks, however late they come on a busy machine.
PATIENT = "import unilaunch.monitor.monitor as monitor\nmonitor.SETTLE = 60.0\n"
HEAD = "import os, sys, time\nrank = int(os.environ['RANK'])\n"


def _start(
    launcher: Launcher, how: str, ranks: int, words: list[str], folder: Path, variables: dict[str, str] | None = None
) -> Finished:
    """Start a script by a bare mpirun, by `launch` with and without an mpirun, or alone."""
    match how:
        case "mpirun":
            return launcher.unilaunch(ranks, ["run", *words], folder, variables=variables)
        case "launch":
            return launcher.launch(ranks, words, folder, variables)
        case "direct":
            return unilaunch(["launch", "-n", str(ranks), "--launcher", "direct", *words], folder, variables)
    return unilaunch(["run", *words], folder)


@pytest.mark.parametrize(("launcher", "how", "code", "end"), [
    ("4.1", "launch", 137, "os.kill(os.getpid(), 9)"),
    ("4.1", "mpirun", 7,
     "import threading; threading.Thread(target=time.sleep, args=(600,)).start(); sys.exit(7)"),
    ("5.0", "mpirun", 137, "os.kill(os.getpid(), 9)"),
], indirect=["launcher"])  # fmt: skip
def test_the_others_can_go_on(launcher: Launcher, how: str, code: int, end: str, tmp_path: Path) -> None:
    """With --no-abort; the job still ends, with the failure's exit code, and still reports."""
    script = f"{HEAD}if rank == 1: {end}\ntime.sleep(2)\nopen(f'done.{{rank}}', 'w').close()\n"
    (tmp_path / "script.py").write_text(script)
    job = _start(launcher, how, 3, ["--no-abort", "script.py"], tmp_path)
    assert (job.returncode, sorted(path.name for path in tmp_path.glob("done.*"))) == (code, ["done.0", "done.2"])
    assert any(line.startswith("unilaunch: rank 1 on ") for line in job.refusals())


def test_an_error_that_quotes_megabytes_is_named(tmp_path: Path) -> None:
    """The log has all of it."""
    (tmp_path / "script.py").write_text("raise IndexError('y' * 40_000_000)\n")
    job = unilaunch(["launch", "-n", "1", "script.py"], tmp_path)
    assert (job.returncode, len(job.said(0, "stderr")) > 40_000_000) == (1, True)
    assert " failed: IndexError: yyy" in job.refusals()[0]


@pytest.mark.parametrize("how", ["mpirun", "launch"])
def test_what_all_ranks_share_is_said_once(openmpi5: Launcher, how: str, tmp_path: Path) -> None:
    """With the script's own frames; each rank's log has them, after what the rank has written."""
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    (tmp_path / "script.py").write_text("import sys\nprint('reading\\ndata', file=sys.stderr)\nimport no_such_module\n")
    job = _start(openmpi5, how, 3, ["script.py"], tmp_path, {"PYTHONPATH": str(tmp_path)})
    begin, said = "Traceback (most recent call last):\n", "ModuleNotFoundError: No module named 'no_such_module'"
    (trace,) = (text.partition("unilaunch: ")[0] for text in job.console.split(begin)[1:])
    place = f'File "{tmp_path / "script.py"}"'
    assert [line.split(",")[0].strip() for line in trace.splitlines()] == [place, "import no_such_module", said]
    assert (job.returncode, job.refusals()[0].partition(said)[0]) == (1, "unilaunch: all 3 ranks: ")
    assert [job.said(rank, "stderr") for rank in range(3)] == [f"reading\ndata\n{begin}{trace}"] * 3


@pytest.mark.timed
@pytest.mark.parametrize("how", ["mpirun", "launch"])
def test_a_script_that_stalls_shows_where(openmpi5: Launcher, how: str, tmp_path: Path) -> None:
    """Every rank's place, the same ones together; exit code 124. Output is progress."""
    (tmp_path / "script.py").write_text(
        f"{HEAD}def load_part():\n    while True: {'pass' if how == 'launch' else 'time.sleep(0.01)'}\n"
        "def all_reduce():\n    time.sleep(60)\n"
        "for step in range(8):\n    print(step, flush=True); time.sleep(0.5)\n"
        "load_part() if rank == 1 else all_reduce()\n"
    )
    job = _start(openmpi5, how, 3, ["--stall-timeout", "3", "script.py"], tmp_path)
    assert (job.returncode, job.seconds > 6) == (124, True)
    assert "ranks 0, 2: all_reduce (script.py:6) < <module> (script.py:9)" in job.console
    assert "rank 1: load_part (script.py:4)" in job.console
    assert [group["ranks"] for group in job.report["stacks"]] == [[0, 2], [1]]


@pytest.mark.timed
def test_a_rank_that_others_await_is_stuck_whatever_they_write(openmpi5: Launcher, tmp_path: Path) -> None:
    """The report names it, and says who waits for it."""
    (tmp_path / "stuck.py").write_text(
        "import os, threading, time\nimport torch, torch.distributed as dist\n"  # once for all ranks: quickly
        "def talk():\n    while True: print('still here', flush=True); time.sleep(2)\n"
        "dist.init_process_group('gloo')\nif dist.get_rank() == 1: time.sleep(120)\n"
        "threading.Thread(target=talk, daemon=True).start()\ndist.all_reduce(torch.ones(1))\n"
    )
    job = _start(openmpi5, "direct", 3, ["--stall-timeout", "10", "stuck.py"], tmp_path)
    assert (job.returncode, job.seconds < 80) == (124, True)
    assert re.search(r"for \d+ s: rank 1 is awaited by ranks 0, 2: the job is ended", job.stderr)


SAVING = (
    "import atexit, signal, threading\n"
    "def note(name, seconds=3):\n    time.sleep(seconds); open(name, 'w').close()\n"
    "def handle(*_):\n    note('saved'); sys.exit(4)\n"
    "if rank == 0:\n    signal.signal(signal.SIGTERM, handle)\n    open('ready', 'w').close()\n"
    "if rank == 1:\n"
    "    if not sys.argv[1:]: atexit.register(note, 'uploaded')\n"
    "    threading.Thread(target=note, args=('written', 1)).start()\n"
    "    while not os.path.exists('ready'): time.sleep(0.05)\n"
    "    raise ValueError('broken on purpose')\n"
    "time.sleep(60)\n"
)


@pytest.mark.timed
@pytest.mark.parametrize("how", ["direct", "launch"])
def test_after_a_failure_ranks_that_save_have_the_grace(how: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """A handler of SIGTERM; threads and exit functions of the failed rank. What takes longer is cut off, and said."""
    (tmp_path / "save.py").write_text(HEAD + SAVING)
    job = _start(openmpi5, how, 3, ["save.py"], tmp_path)
    told, verdict, *_ = job.refusals()
    assert re.match("unilaunch: rank 1 on .*ValueError: broken on purpose", verdict)
    assert re.search("; ranks? [01](-1)? ha(s|ve) 30 s to save$", told)
    assert {"saved", "written", "uploaded"} <= {path.name for path in tmp_path.iterdir()}
    assert (job.returncode, job.seconds < 15) == (1, True)
    for name in ("ready", "saved", "written"):
        (tmp_path / name).unlink()
    late = _start(openmpi5, how, 3, ["--grace", "2", "save.py", "--", "no exit function"], tmp_path)
    assert [late.returncode, *((tmp_path / name).exists() for name in ("saved", "written"))] == [1, False, True]
    assert "did not end within the 2 s of --grace: killed" in late.console


@pytest.mark.timed
def test_a_bare_mpirun_has_one_verdict(launcher: Launcher, tmp_path: Path) -> None:
    """Printed once, by rank 0's guard; who failed, at what, and where its log is; the job's exit code is his."""
    script = f"{HEAD}print('working', file=sys.stderr)\ntime.sleep(0.2)\nif rank == 2: os._exit(9)\ntime.sleep(60)\n"
    (tmp_path / "script.py").write_text(script)
    job = launcher.unilaunch(3, ["run", "script.py"], tmp_path)
    assert (job.returncode, job.seconds < 30, sum("failed" in line for line in job.refusals())) == (9, True, 1)
    failure = job.failure(2)
    assert (failure["exit_code"], failure["phase"], failure["last_lines"]) == (9, "program", ["working"])
    assert job.report["first"] == failure
    wait_until(lambda: not list(processes_in(tmp_path)), 10)  # an agent may outlive mpirun for a moment


@pytest.mark.parametrize(("how", "words", "named"), [
    ("direct", [MIXED, "sum_ranks", "halo"], ["sum_ranks", "halo"]),
    # Over MPI without the word in each message a sum of 1 and a mean of 1 would add up, and 3 numbers fit into 6.
    ("launch", [MIXED, "sum_ranks", "mean"], ["sum_ranks", "mean"]),
    ("launch", [MIXED, "sum_gradients", "load"], ["sum_gradients", "load"]),
    ("launch", [MIXED, "a broadcast", "barrier"], ["a broadcast", "barrier"]),
    ("launch", [MIXED, "halo", "sum_halo"], ["halo", "sum_halo"]),
    ("direct", [MIXED, "nothing", "barrier"], ["the end of its program", "barrier"]),
    # Told at the end: a sum of one rank was another's mean, between devices, long ago.
    ("direct", [MIXED, "unsaid"], []),
    # Unequal numbers of batches hang in DGL (issue 3538). The line has the names of what the script has called.
    ("launch", [UNEQUAL, "torch"], ["fetch", "sum_ranks"]),
    pytest.param("direct", [UNEQUAL, "mindspore"], ["fetch", "sum_ranks"], marks=pytest.mark.mindspore),
])  # fmt: skip
def test_mixed_calls_are_told(openmpi5: Launcher, how: str, words: list[str], named: list[str], tmp_path: Path) -> None:
    """Where one waits for a message that the other never sends, the monitor compares what they have called."""
    job = _start(openmpi5, how, 2, words, tmp_path)
    expected = [f"rank {rank} is at {name} (" for rank, name in enumerate(named)] or ["different collectives"]
    assert [text for text in expected if text not in job.console] == []
    assert (job.returncode, job.seconds < 60) == (1, True)


def test_large_messages_of_mpi_travel_in_pieces(openmpi5: Launcher, tmp_path: Path) -> None:
    openmpi5.run(2, [MIXED, "pieces"], tmp_path).check()


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


@cache
def _plain(how: str) -> dict[str, int]:
    with TemporaryDirectory() as folder:
        alone([WRITING, {"ordered": "handled"}.get(how, how), folder], Path(folder))
        return _sizes(Path(folder))


@pytest.mark.parametrize(("start", "how", "modules"), [
    ("run", "exit", []), ("launch", "handled", []), ("mpirun", "interrupt", []), ("launch", "ordered", []),
    ("mpirun", "left behind", []), ("run", "fork", []), ("run", "raise", ["torch"]),
    ("launch", "left behind", ["torch"]), ("mpirun", "raise", ["mpi4py.MPI"]),
])  # fmt: skip
def test_no_byte_is_lost(openmpi5: Launcher, start: str, how: str, modules: list[str], tmp_path: Path) -> None:
    (files := tmp_path / "files").mkdir()
    job = _start(openmpi5, start, 2, [WRITING, how, str(files), *modules], tmp_path)
    wait_until(lambda: not list(processes_in(tmp_path)), 20)  # an agent may outlive mpirun for a moment
    expected, found = _plain(how), _sizes(files)
    assert not {name: found.get(name) for name, size in expected.items() if found.get(name, 0) < size}, job.console
    assert (len(expected) >= 9, expected["text"]) == (True, 22)
