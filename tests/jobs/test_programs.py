"""The user's own programs: unchanged, with `unilaunch.init()`, with libraries or MPI of their own."""

import gc
import json
import re
import sys
import time
from pathlib import Path

import pytest

from jobs.conftest import find_launcher
from jobs.idx import first_images
from jobs.mpirun import Launcher, alone, finish, unilaunch
from jobs.ports import free_ports
from jobs.test_launchers import LEFT

PROGRAMS = Path(__file__).parent / "programs"
MPI, BIN = Path(__file__).parents[2] / ".mpi", Path(sys.executable).parent
MNIST = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"
OWN_START = str(PROGRAMS / "own_start.py")
TORCHRUN = [str(BIN / "torchrun"), "--nproc-per-node", "2"]
AS_ROOT = ["--allow-run-as-root", "--oversubscribe"]


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
    """Its threads in every library, its own random numbers, the collector; and the ranks come from one process."""
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
        assert each["collector"] == [True, [*gc.get_threshold()], 0]


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


def test_a_programs_excepthook_is_called(tmp_path: Path) -> None:
    """It shows the traceback in its own way, and may send it somewhere."""
    hook = "def hook(kind, error, trace): print('HOOK', kind.__name__, error, trace.tb_lineno, file=sys.stderr)"
    (tmp_path / "hook.py").write_text(f"import sys\n{hook}\nsys.excepthook = hook\nraise ValueError('broken')\n")
    job = unilaunch(["run", "hook.py"], tmp_path)
    assert (job.returncode, "Traceback" in job.stderr, "HOOK ValueError broken 4\n" in job.stderr) == (1, False, True)
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
#: It forks a daemon, by the classic double fork, and helpers, each of which ends in another way.
FORKS = """
import atexit, os, sys
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
"""
LAST = "import atexit, sys\natexit.register(lambda: print(repr(getattr(sys, 'last_value', None))))\n"
FILES = {
    "package/__init__.py": "", "package/__main__.py": MODULE, "package/tool.py": MODULE,
    "forks.py": FORKS, "fails.py": f"{LAST}raise ValueError('broken')\n", "ends.py": f"{LAST}sys.exit(3)\n",
    "socket.py": "raise RuntimeError", "sub/wanted.py": "raise RuntimeError", "lib/wanted.py": "who = 'the lib'",
    "sub/main.py": "import sys, wanted\nprint(wanted.who, sys.path)\n", "sub/path.py": "import sys\nprint(sys.path)\n",
}  # fmt: skip


@pytest.mark.parametrize("line", [
    "-m package.tool a --b=c", "-m package a --b=c", "fails.py", "ends.py", "forks.py", "sub/path.py", "sub/main.py",
])  # fmt: skip
def test_a_program_is_as_under_plain_python(line: str, tmp_path: Path) -> None:
    """A module is __main__ to the end; exit functions see that the program failed; what it forks is no rank.

    Files of the current folder replace none of Python's; with -P a script's own folder adds none to the user's.
    """
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path / "lib")} if line == "sub/main.py" else {}
    expected, found = (alone([*way, *line.split()], tmp_path, variables) for way in ([], ["-m", "unilaunch", "run"]))
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert expected.stdout


def test_a_script_alone_has_a_world_of_one(tmp_path: Path) -> None:
    """As under torchrun with one process."""
    script = "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_world_size())\n"
    (tmp_path / "main.py").write_text(script)
    job = unilaunch(["run", "main.py"], tmp_path).check()
    assert (job.stdout, job.stderr) == ("1\n", "")


def test_the_ranks_speak_through_what_has_started_them(openmpi5: Launcher, tmp_path: Path) -> None:
    """MPI under a bare mpirun, and the script goes on to use it as its own; sockets under torchrun; else nothing."""
    said = openmpi5.run(2, [OWN_START, "mpi"], tmp_path).check().stdout
    for words in ("0/2 on cpu by MpiCollectives: 9.0", "1/2 on cpu by MpiCollectives: 9.0", "MPI counts 2"):
        assert words in said
    assert "1/2 on cpu by TcpCollectives: 9.0" in finish([*TORCHRUN, OWN_START], tmp_path, None).check().stdout
    assert "0/1 on cpu by Alone: 3.0" in alone([OWN_START], tmp_path).check().stdout


def test_the_ranks_of_a_group_that_the_script_has_made_are_the_ranks(tmp_path: Path) -> None:
    """`mp.spawn` and `init_process_group`, with no launcher, also where a script or a shell has set some variables.

    A process that worked alone before does not go on beside others: each of the two would train on the whole graph.
    """
    job = alone([str(PROGRAMS / "own_group.py"), *map(str, free_ports(3))], tmp_path)
    assert [job.stdout.count(f"rank {rank} of 2, the sums are [3.0, 3000.0]") for rank in range(2)] == [2, 2]
    assert (job.stdout.count("the sums are"), job.returncode == 0) == (4, False)
    assert "has a group of 2 ranks, and this process went on as rank 0 of 1" in job.stderr


@pytest.mark.parametrize("start", ["mpirun", "torchrun"])
def test_a_rank_that_fails_ends_the_others(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """They wait for it in a collective, and its traceback is shown."""
    line = [str(openmpi5.path), *AS_ROOT, "-n", "2", sys.executable] if start == "mpirun" else TORCHRUN
    job = finish([*line, OWN_START, "fail"], tmp_path, None)
    assert (job.returncode == 0, "SystemError: boom" in job.stderr) == (False, True)
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 30


def _two_ranks(start: str) -> list[str]:
    """Return the words before a program that unilaunch is to run on two ranks."""
    module = [sys.executable, "-m", "unilaunch"]
    if start == "launch":
        return [*module, "launch", "-n", "2", *find_launcher("5.0").options]
    hydra = MPI / start / "bin" / "mpiexec"
    path = BIN / "prterun" if start == "prterun" else find_launcher(start).path if start in {"4.1", "5.0"} else hydra
    if not path.exists():
        pytest.skip(f"no {path}: see .ci/run")
    return [str(path), *([] if path == hydra else AS_ROOT), "-n", "2", *module, "run"]


@pytest.mark.parametrize(("start", "program", "said"), [
    *((start, "own_mpi.py", "sum 1\n") for start in ("4.1", "5.0", "launch", "prterun", "mpich", "intel")),
    *((start, "own_spawn.py", "sum 6\n") for start in ("5.0", "launch")),
    ("5.0", "own_store.py -- spawn", "sum 3, threads True\n"),
])  # fmt: skip
def test_mpi_and_the_place_to_meet_are_the_programs(start: str, program: str, said: str, tmp_path: Path) -> None:
    """It may initialise MPI at every thread level, end it before its own end, and spawn processes.

    Under bare PMIx (prterun) the ranks meet through MPI, which was initialised before the program asks for it. On one
    host processes of two worlds share no memory in Open MPI 5. Or rank 0 picks a port and broadcasts it.
    """
    job = finish([*_two_ranks(start), *str(PROGRAMS / program).split()], tmp_path, None).check()
    assert [job.said(rank) for rank in range(2)] == [said] * 2


def test_a_rank_may_leave_in_its_own_way(launcher: Launcher, tmp_path: Path) -> None:
    """A program without MPI that leaves one rank by os._exit(0) has done nothing wrong.

    Under Open MPI 4 too, which would end a job of ranks that had met through its store.
    """
    (tmp_path / "leave.py").write_text("import os\nif os.environ['RANK'] == '1': os._exit(0)\nprint('done')\n")
    job = launcher.launch(3, ["leave.py"], tmp_path).check()
    assert [job.said(rank) for rank in range(3)] == ["done\n", "", "done\n"]
