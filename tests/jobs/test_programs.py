"""The user's own scripts, modules and functions, unchanged, under a real mpirun."""

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
    weights = []
    for rank in range(2):
        found = re.findall(rf"{rank}/2 (\S+) -> (\S+) weights (\S+)", job.said(rank))
        assert len(found) == 2
        assert all(float(last) < float(first) for first, last, _ in found)
        weights.append([sums for *_, sums in found])
    assert weights[0] == weights[1]
    assert [job.said(rank, "stderr").count("slow ranks (stragglers) will not be named") for rank in range(2)] == [1, 0]


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
def add(name):
    total = torch.ones(1)
    dist.all_reduce(total)
    print(name, total.item())
def save():
    time.sleep(0.3)
    add("thread")
atexit.register(add, "exit function")
threading.Thread(target=save).start()
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
rank = os.environ["RANK"]
def daemonise():
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    if os.fork():
        sys.exit(0)
    os._exit(0)
if rank == "0":
    atexit.register(lambda: print("exit function of", "the rank" if os.getpid() == own else "a fork"))
    own = os.getpid()
    print("daemon", daemonise(), flush=True)
    for how in (3, "closed", "raise", "return"):
        if not (child := os.fork()):
            if how == "closed":
                sys.stderr.close()
            if how == "raise":
                raise ValueError("in the helper")
            if how != "return":
                sys.exit(how)
            break
        print(how, os.waitpid(child, 0)[1] >> 8, flush=True)
time.sleep(0.2)
"""


def test_a_process_that_a_rank_has_forked_is_no_rank(openmpi5: Launcher, tmp_path: Path) -> None:
    """It ends as under plain Python, and neither ends the job nor waits for the other ranks."""
    (tmp_path / "forks.py").write_text(FORKS)
    job = openmpi5.unilaunch(2, ["run", "forks.py"], tmp_path).check()
    assert sorted(job.said(0).splitlines()) == [
        "3 3", "closed 1", "daemon 0", *["exit function of a fork"] * 5, "exit function of the rank", "raise 1",
        "return 0",
    ]  # fmt: skip
    errors = job.said(0, "stderr")
    assert errors.startswith("Traceback ")
    assert (errors.endswith("\nValueError: in the helper\n"), "unilaunch" in errors) == (True, False)
    assert not list(job.output.glob("rank.*/failure.json"))


def test_a_rank_can_become_another_program(openmpi5: Launcher, tmp_path: Path) -> None:
    """A wrapper's usual last line; the port that it held for the program is free then."""
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_world_size())\n"
    )
    (tmp_path / "wrapper.py").write_text("import os, sys\nos.execv(sys.executable, [sys.executable, 'train.py'])\n")
    assert openmpi5.unilaunch(2, ["run", "wrapper.py"], tmp_path).check().said(1) == "2\n"


def test_a_training_that_is_a_child_process_of_its_rank_is_told_what_to_do(tmp_path: Path) -> None:
    """Torch says only that the address is in use: rank 0 serves the store there."""
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (tmp_path / "wrapper.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'train.py']))\n"
    )
    job = unilaunch(["launch", "-n", "2", "--launcher", "direct", "wrapper.py"], tmp_path)
    assert job.returncode == 1
    assert any("must become it (os.execv)" in line for line in job.refusals())


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


@pytest.mark.parametrize("broken", [False, True])
def test_a_programs_excepthook_is_called(tmp_path: Path, *, broken: bool) -> None:
    """It shows the traceback in its own way, and may send it somewhere; if it fails, the traceback is shown."""
    body = "raise SystemExit" if broken else "print('HOOK', kind.__name__, error, trace.tb_lineno, file=sys.stderr)"
    script = f"import sys\ndef hook(kind, error, trace): {body}\nsys.excepthook = hook\nraise ValueError('broken')\n"
    (tmp_path / "hook.py").write_text(script)
    job = unilaunch(["run", "hook.py"], tmp_path)
    assert job.returncode == 1
    assert ["Traceback" in text for text in (job.said(0, "stderr"), job.stderr)] == [broken, broken]
    assert broken or "HOOK ValueError broken 4\n" in job.stderr
    assert job.failure(0)["traceback"]


def test_exit_functions_can_see_that_the_program_failed(tmp_path: Path) -> None:
    """By `sys.last_value`, as under plain Python."""
    told = "import atexit, sys\natexit.register(lambda: print(repr(getattr(sys, 'last_value', None))))\n"
    (tmp_path / "fails.py").write_text(f"{told}raise ValueError('broken')\n")
    (tmp_path / "ends.py").write_text(f"{told}sys.exit(3)\n")
    for script, seen in (("fails.py", "ValueError('broken')\n"), ("ends.py", "None\n")):
        assert alone([script], tmp_path).stdout == unilaunch(["run", script], tmp_path).stdout == seen


@pytest.mark.parametrize("name", ["package.tool", "package"])
def test_a_module_runs_as_main(name: str, tmp_path: Path) -> None:
    """With this folder first in sys.path, as with python -m; it is __main__ to the end."""
    (tmp_path / "package").mkdir()
    for file in ("tool", "__main__", "__init__"):
        (tmp_path / "package" / f"{file}.py").write_text("" if "init" in file else MODULE)
    expected = alone(["-m", name, "a", "--b=c"], tmp_path).check().stdout
    assert unilaunch(["run", "-m", name, "--", "a", "--b=c"], tmp_path).check().stdout == expected


def test_a_script_alone_has_a_world_of_one_and_triton_reports_no_leak(tmp_path: Path) -> None:
    """As under torchrun with one process. Triton would, of all that the import has exempted from the collector."""
    triton = "import triton._C.libtriton\n" if find_spec("triton") else ""  # MindSpore imports it
    (tmp_path / "main.py").write_text(
        f"{triton}import torch\nimport os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "print(f\"{dist.get_rank()}/{dist.get_world_size()} local {os.environ['LOCAL_RANK']}\")\n"
    )
    job = unilaunch(["run", "main.py"], tmp_path).check()
    assert (job.stdout, job.stderr) == ("0/1 local 0\n", "")


def test_a_script_finds_the_modules_that_plain_python_finds(tmp_path: Path) -> None:
    """Files of the current folder replace none of Python's; with -P its own folder adds none to the user's."""
    files = {
        "socket.py": "raise RuntimeError",
        "sub/wanted.py": "raise RuntimeError",
        "lib/wanted.py": "who = 'the lib'",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "sub" / "main.py").write_text("import sys, wanted\nprint(wanted.who, sys.path)\n")
    (tmp_path / "sub" / "path.py").write_text("import sys\nprint(sys.path)\n")
    safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path / "lib")}
    for script, variables in (("sub/main.py", safe), ("sub/path.py", {})):
        expected = alone([script], tmp_path, variables).check().stdout
        assert unilaunch(["run", script], tmp_path, variables).check().stdout == expected
