"""The user's own scripts and modules, unchanged, under a real mpirun; libraries that find the ranks by themselves."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobs.idx import first_images
from jobs.mpirun import Launcher, alone, finish, unilaunch
from jobs.test_launchers import LEFT

PROGRAMS = Path(__file__).parent / "programs"
MNIST = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"


def test_a_script_for_torchrun_runs_unchanged(openmpi5: Launcher, tmp_path: Path) -> None:
    """It finds the others, its arguments, its folder and itself as __main__; every rank's weights are the same.

    As torch.distributed.launch does, it gets its local rank as an argument; the variable is then another's.
    """
    line = ["run", str(PROGRAMS / "ddp.py"), "--local-rank-argument", "--", "--lr", "0.01"]
    job = openmpi5.unilaunch(2, line, tmp_path, variables={"LOCAL_RANK": "9"}).check()
    said = [job.said(rank).splitlines() for rank in range(2)]
    for rank, (who, where) in enumerate(said):
        assert who.startswith(f"{rank}/2 local {rank} elastic True")
        assert where == f"{rank} path {PROGRAMS} argv {PROGRAMS / 'ddp.py'} file {PROGRAMS / 'ddp.py'}"
    assert len({who.partition("True")[2] for who, _ in said}) == 1
    assert "0/2 local 0" in job.stdout


def test_arguments_may_differ_between_ranks(openmpi5: Launcher, tmp_path: Path) -> None:
    """As a line that gives each rank its local rank by itself has them."""
    (tmp_path / "train.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    start = f"exec {sys.executable} -m unilaunch run train.py --local_rank $OMPI_COMM_WORLD_LOCAL_RANK"
    line = [str(openmpi5.path), "--allow-run-as-root", "--oversubscribe", "-n", "2", "bash", "-c", start]
    job = finish(line, tmp_path, None).check()
    assert [job.said(rank) for rank in range(2)] == ["--local_rank 0\n", "--local_rank 1\n"]


@pytest.mark.mindspore
def test_the_script_of_mindspores_mpirun_tutorial_runs_on_cpu(openmpi5: Launcher, tmp_path: Path) -> None:
    """Where MindSpore itself does not know mpirun; in PyNative mode and in graph mode.

    Rank 0 says once that no wait is measured in graph mode. A role that is left in the user's shell is without effect.
    """
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST files at {MNIST}")
    first_images(MNIST, tmp_path, {"train": 2000, "test": 1})
    variables = {"DATA_PATH": str(tmp_path / "train"), "MS_ROLE": "MS_SCHED"}
    job = openmpi5.unilaunch(2, ["run", str(PROGRAMS / "mindspore_net.py")], tmp_path, variables=variables).check()
    found = [re.findall(rf"{rank}/2 (\S+) -> (\S+) weights (\S+)", job.said(rank)) for rank in range(2)]
    assert [len(modes) for modes in found] == [2, 2]
    assert all(float(last) < float(first) for modes in found for first, last, _ in modes)
    assert [weights for *_, weights in found[0]] == [weights for *_, weights in found[1]]
    assert [job.said(rank, "stderr").count("slow ranks (stragglers) will not be named") for rank in range(2)] == [1, 0]


#: How the script is started, its name, and the batches that each of 2 ranks has.
@pytest.mark.parametrize(("way", "script", "batches"), [
    ("launch", "accelerated.py", 4), ("run", "lightened.py", 4), ("launch", "sharded.py", 1)
])  # fmt: skip
def test_a_library_finds_its_ranks(openmpi5: Launcher, way: str, script: str, batches: int, tmp_path: Path) -> None:
    """Two scripts divide 64 rows into batches of 8, and give both ranks one loss; FSDP reads what it has written."""
    line = [str(PROGRAMS / script), str(tmp_path / "checkpoint")]
    launch = ["launch", "-n", "2", *line]
    job = unilaunch(launch, tmp_path) if way == "launch" else openmpi5.unilaunch(2, ["run", *line], tmp_path)
    said = [re.findall(r"(\d)/2 batches (\d+) losses (.*)", job.check().said(rank))[-1] for rank in range(2)]
    assert said == [(str(rank), str(batches), said[0][2]) for rank in range(2)]
    assert "False" not in said[0][2]


def test_a_program_finds_what_it_would_have_imported(tmp_path: Path) -> None:
    """Its threads in every library, its own random numbers; and the ranks come from one process."""
    told = []
    for command, ranks in (("launch -n 3", 3), ("run", 1)):
        (folder := tmp_path / command).mkdir()
        job = unilaunch([*command.split(), "--threads", "2", str(PROGRAMS / "own_libraries.py")], folder).check()
        told.append([json.loads(job.said(rank)) for rank in range(ranks)])
    shared, own = told
    assert len({each["above"] for each in shared}) == 1
    assert [len({each["drawn"][drawn] for each in shared}) for drawn in ("numpy", "torch", "python")] == [3, 3, 3]
    for each in (*shared, *own):
        assert (each["torch"], each["pools"], each["variable"]) == ([2, 2], [2, 2], "2")


def test_a_last_word_is_a_failure(tmp_path: Path) -> None:
    """As in plain Python: it is shown, and the exit code is 1."""
    (tmp_path / "word.py").write_text("raise SystemExit('a last word')\n")
    job = unilaunch(["run", "word.py"], tmp_path)
    assert (job.returncode, job.failure(0)["exit_code"], "a last word" in job.stderr) == (1, 1, True)


#: Groups one after the other; what each rank adds to the sum grows, so that an old group's data would be noticed. Then
#: a thread and an exit function of each rank that use the communication, after the script's last line.
GROUPS = """
import atexit, sys, threading, time
import torch, torch.distributed as dist
for turn in range(12):
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + turn)
    dist.all_reduce(total)
    dist.barrier(group=dist.new_group([0, 1]))
    print(turn, total.item())
    dist.destroy_process_group()
dist.init_process_group("gloo")
def add(name, seconds):
    time.sleep(seconds)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(name, total.item())
atexit.register(add, "exit function", 0)
threading.Thread(target=add, args=("thread", 0.3)).start()
sys.exit(0)
"""


def test_threads_and_exit_functions_can_use_the_communication(openmpi5: Launcher, tmp_path: Path) -> None:
    """As in plain Python, and under torchrun: a checkpoint is written in the background, the last totals at the end.

    A group can follow another: the store of the job outlives them, and its keys do. What torchrun has left in the shell
    does not count.
    """
    (tmp_path / "farewell.py").write_text(GROUPS)
    job = openmpi5.unilaunch(2, ["run", "farewell.py"], tmp_path, variables=LEFT).check()
    sums = "".join(f"{turn} {2 * turn + 1.0}\n" for turn in range(12))
    assert [job.said(rank) for rank in range(2)] == [f"{sums}thread 2.0\nexit function 2.0\n"] * 2


#: Rank 0 forks a daemon, by the classic double fork, and helpers, each of which ends in another way.
FORKS = """
import os, sys, time, atexit
if os.environ["RANK"] == "0":
    own = os.getpid()
    atexit.register(lambda: print("exit function of", "the rank" if os.getpid() == own else "a fork"))
    for how in ("daemon", 3, "raise", "return"):
        if not (child := os.fork()):
            if how == "daemon" and not os.fork():
                os._exit(0)
            if how == "raise":
                raise ValueError("in the helper")
            if how != "return":
                sys.exit(0 if how == "daemon" else how)
            break
        print(how, os.waitpid(child, 0)[1] >> 8, flush=True)
time.sleep(0.2)
"""


def test_a_process_that_a_rank_has_forked_is_no_rank(openmpi5: Launcher, tmp_path: Path) -> None:
    """It ends as under plain Python, and neither ends the job nor waits for the other ranks."""
    (tmp_path / "forks.py").write_text(FORKS)
    job = openmpi5.unilaunch(2, ["run", "forks.py"], tmp_path).check()
    ends = ["3 3", "daemon 0", *["exit function of a fork"] * 4, "exit function of the rank", "raise 1", "return 0"]
    assert sorted(job.said(0).splitlines()) == ends
    errors = job.said(0, "stderr")
    assert (errors.endswith("\nValueError: in the helper\n"), "unilaunch" in errors) == (True, False)
    assert not list(job.output.glob("rank.*/failure.json"))


@pytest.mark.parametrize(("last", "code"), [
    ("os.execv(sys.executable, line)", 0), ("import subprocess; sys.exit(subprocess.call(line))", 1),
])  # fmt: skip
def test_a_rank_can_become_another_program(last: str, code: int, tmp_path: Path) -> None:
    """A wrapper's usual last line: the port is free then. A child process is told why it cannot: rank 0 listens."""
    train = "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_world_size())\n"
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "wrapper.py").write_text(f"import os, sys\nline = [sys.executable, 'train.py']\n{last}\n")
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", "wrapper.py"], tmp_path)
    assert (job.returncode, job.said(1) == "2\n") == (code, code == 0)
    assert any("must become it (os.execv)" in line for line in job.refusals()) == (code == 1)


@pytest.mark.parametrize("broken", [False, True])
def test_a_programs_excepthook_is_called(tmp_path: Path, *, broken: bool) -> None:
    """It shows the traceback in its own way, and may send it somewhere; if it fails, the traceback is shown."""
    body = "raise SystemExit" if broken else "print('HOOK', kind.__name__, error, trace.tb_lineno, file=sys.stderr)"
    script = f"import sys\ndef hook(kind, error, trace): {body}\nsys.excepthook = hook\nraise ValueError('broken')\n"
    (tmp_path / "hook.py").write_text(script)
    job = unilaunch(["run", "hook.py"], tmp_path)
    assert (job.returncode, "Traceback" in job.stderr, "Traceback" in job.said(0, "stderr")) == (1, broken, broken)
    assert broken or "HOOK ValueError broken 4\n" in job.stderr
    assert job.failure(0)["traceback"]


#: What python -m gives a module; a thread that outlives its last line pickles an object of __main__.
MODULE = """
import os, pickle, sys, threading, time
class Net: pass
def save():
    time.sleep(0.3)
    pickle.loads(pickle.dumps(Net()))
    print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0] == os.getcwd())
threading.Thread(target=save).start()
"""
LAST = "import atexit, sys\natexit.register(lambda: print(repr(getattr(sys, 'last_value', None))))\n"
FILES = {
    "package/__init__.py": "", "package/__main__.py": MODULE, "package/tool.py": MODULE,
    "fails.py": f"{LAST}raise ValueError('broken')\n", "ends.py": f"{LAST}sys.exit(3)\n",
    "socket.py": "raise RuntimeError", "sub/wanted.py": "raise RuntimeError", "lib/wanted.py": "who = 'the lib'",
    "sub/main.py": "import sys, wanted\nprint(wanted.who, sys.path)\n", "sub/path.py": "import sys\nprint(sys.path)\n",
}  # fmt: skip


@pytest.mark.parametrize("line", [
    "-m package.tool a --b=c", "-m package a --b=c", "fails.py", "ends.py", "sub/path.py", "sub/main.py",
])  # fmt: skip
def test_a_program_is_as_under_plain_python(line: str, tmp_path: Path) -> None:
    """A module is __main__ to the end; exit functions see that the program failed, by `sys.last_value`.

    Files of the current folder replace none of Python's; with -P a script's own folder adds none to the user's.
    """
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path / "lib")} if line == "sub/main.py" else {}
    expected, found = (alone([*way, *line.split()], tmp_path, variables) for way in ([], ["-m", "unilaunch", "run"]))
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert expected.stdout


def test_a_script_alone_has_a_world_of_one_and_triton_reports_no_leak(tmp_path: Path) -> None:
    """As under torchrun with one process. Triton would, of all that the import has exempted from the collector."""
    triton = "import triton._C.libtriton\n" if find_spec("triton") else ""  # MindSpore imports it
    (tmp_path / "main.py").write_text(
        f"{triton}import torch\nimport os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "print(f\"{dist.get_rank()}/{dist.get_world_size()} local {os.environ['LOCAL_RANK']}\")\n"
    )
    job = unilaunch(["run", "main.py"], tmp_path).check()
    assert (job.stdout, job.stderr) == ("0/1 local 0\n", "")
