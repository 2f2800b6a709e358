"""The user's own scripts, modules and functions, unchanged, under a real mpirun."""

import gzip
import json
import re
import shutil
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobs.mpirun import Launcher, alone, finish

PROGRAMS = Path(__file__).parent / "programs"
MNIST = Path(__file__).parents[2].parent / "shared" / "datasets" / "mnist"


#: Where torch.distributed.launch gave a script its local rank as an argument; the variable is then another's.
ARGUMENT = ["--local-rank-argument"]


@pytest.mark.parametrize(("launcher", "options"), [("4.1", []), ("5.0", ARGUMENT)], indirect=["launcher"])
def test_a_script_for_torchrun_runs_unchanged(launcher: Launcher, options: list[str], tmp_path: Path) -> None:
    """It finds the others, its arguments, its folder and itself as __main__; every rank's weights are the same."""
    line = ["run", str(PROGRAMS / "ddp.py"), *options, "--", "--lr", "0.01"]
    job = launcher.unilaunch(2, line, tmp_path, variables={"LOCAL_RANK": "9"} if options else {}).check()
    said = [(job.output / f"rank.{rank}" / "stdout").read_text().splitlines() for rank in range(2)]
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
    for rank in range(2):
        assert (job.output / f"rank.{rank}" / "stdout").read_text() == f"--local_rank {rank}\n"


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 2,000 training images as the tutorial has them: unpacked."""
    if not MNIST.is_dir():
        pytest.skip(f"no MNIST files at {MNIST}")
    folder = tmp_path_factory.mktemp("MNIST_Data")
    for file in MNIST.glob("train-*.gz"):
        header, size = (16, 28 * 28) if "images" in file.name else (8, 1)  # the number is behind the first four bytes
        with gzip.open(file) as packed:
            magic, _, shape = packed.read(4), packed.read(4), packed.read(header - 8)
            (folder / file.stem).write_bytes(magic + struct.pack("!I", 2000) + shape + packed.read(2000 * size))
    return folder


@pytest.mark.parametrize("launcher", ["4.1"], indirect=True)
@pytest.mark.mindspore
def test_the_script_of_mindspores_mpirun_tutorial_runs_on_cpu(launcher: Launcher, mnist: Path, tmp_path: Path) -> None:
    """Where MindSpore itself does not know mpirun; in PyNative mode and in graph mode.

    Rank 0 says once that no wait is measured in graph mode. A role that is left in the user's shell is without effect.
    """
    line = ["run", str(PROGRAMS / "mindspore_net.py")]
    job = launcher.unilaunch(2, line, tmp_path, variables={"DATA_PATH": str(mnist), "MS_ROLE": "MS_SCHED"}).check()
    weights = []
    for rank in range(2):
        said = (job.output / f"rank.{rank}" / "stdout").read_text()
        found = re.findall(rf"{rank}/2 (\S+) -> (\S+) weights (\S+)", said)
        assert len(found) == 2
        assert all(float(last) < float(first) for first, last, _ in found)
        weights.append([sums for *_, sums in found])
    assert weights[0] == weights[1]
    logs = [(job.output / f"rank.{rank}" / "stderr").read_text() for rank in range(2)]
    assert [log.count("no straggler will be named") for log in logs] == [1, 0]


@pytest.mark.parametrize(("how", "returncode", "words"), [
    ("well", 0, ""),
    ("raise", 1, "ValueError: broken on purpose"),
    ("exit", 7, "rank 1"),
    ("message", 1, "a last word"),
])  # fmt: skip
def test_exit_codes_are_the_scripts(launcher: Launcher, how: str, returncode: int, words: str, tmp_path: Path) -> None:
    """And the others do not outlive it."""
    job = launcher.unilaunch(3, ["run", str(PROGRAMS / "ending.py"), "--", how], tmp_path)
    assert job.returncode == returncode
    assert words in job.console
    assert len(list(tmp_path.glob("began.*"))) == 3
    if returncode:
        failure = json.loads((job.output / "rank.1" / "failure.json").read_text())
        assert (failure["rank"], failure["exit_code"]) == (1, returncode)


def test_a_last_word_is_a_failure(tmp_path: Path) -> None:
    """As in plain Python: it is shown, and the exit code is 1."""
    (tmp_path / "word.py").write_text("raise SystemExit('a last word')\n")
    job = alone(["-m", "unilaunch", "run", "word.py"], tmp_path)
    assert (job.returncode, "a last word" in job.stderr) == (1, True)


#: Groups one after the other; what each rank adds to the sum grows, so that an old group's data would be noticed.
GROUPS = """
import torch, torch.distributed as dist
for turn in range(12):
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + turn)
    dist.all_reduce(total)
    dist.barrier(group=dist.new_group([0, 1]))
    print(turn, total.item())
    dist.destroy_process_group()
"""
#: A thread and an exit function of each rank that use the communication, after the script's last line.
FAREWELL = """
import atexit, sys, threading, time
import torch, torch.distributed as dist
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
"""


@pytest.mark.parametrize(("groups", "end"), [(GROUPS, ""), ("", "sys.exit(0)")], ids=["after groups", "exit"])
def test_threads_and_exit_functions_can_use_the_communication(
    openmpi5: Launcher, groups: str, end: str, tmp_path: Path
) -> None:
    """As in plain Python, and under torchrun: a checkpoint is written in the background, the last totals at the end.

    A group can follow another: the store of the job outlives them, and its keys do.
    """
    (tmp_path / "farewell.py").write_text(groups + FAREWELL + end)
    job = openmpi5.unilaunch(2, ["run", "farewell.py"], tmp_path).check()
    sums = "".join(f"{turn} {2 * turn + 1.0}\n" for turn in range(12 if groups else 0))
    for rank in range(2):
        assert (job.output / f"rank.{rank}" / "stdout").read_text() == f"{sums}thread 2.0\nexit function 2.0\n"


#: Rank 0 forks a helper, which ends as the first argument says, and a daemon, by the classic double fork.
FORKS = """
import os, sys, time, atexit
rank, how = os.environ["RANK"], sys.argv[1]
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
    if not (child := os.fork()):
        if how == "closed":
            sys.stderr.close()
        if how == "raise":
            raise ValueError("in the helper")
        if how != "return":
            sys.exit(int(how) if how.isdecimal() else how)
    if os.getpid() == own:
        print("helper", os.waitpid(child, 0)[1] >> 8)
time.sleep(0.2)
"""


@pytest.mark.parametrize(("how", "code", "said"), [
    ("3", 3, ""), ("return", 0, ""), ("a word", 1, "a word\n"), ("closed", 1, ""),
    ("raise", 1, "ValueError: in the helper\n"),
])  # fmt: skip
def test_a_process_that_a_rank_has_forked_is_no_rank(
    openmpi5: Launcher, how: str, code: int, said: str, tmp_path: Path
) -> None:
    """It ends as under plain Python, and neither ends the job nor waits for the other ranks."""
    (tmp_path / "forks.py").write_text(FORKS)
    job = openmpi5.unilaunch(2, ["run", "forks.py", how], tmp_path).check()
    lines = (job.output / "rank.0" / "stdout").read_text().splitlines()
    assert sorted(lines) == [
        "daemon 0", "exit function of a fork", "exit function of a fork", "exit function of the rank", f"helper {code}"
    ]  # fmt: skip
    errors = (job.output / "rank.0" / "stderr").read_text()
    assert errors.endswith(said)
    assert "unilaunch" not in errors
    assert not list(job.output.glob("rank.*/failure.json"))


def test_a_traceback_begins_in_the_script(openmpi5: Launcher, tmp_path: Path) -> None:
    """As plain Python prints it: the launcher's frames are of no use to the reader."""
    job = openmpi5.unilaunch(2, ["run", str(PROGRAMS / "ending.py"), "--", "raise"], tmp_path)
    trace = job.stderr[job.stderr.index("Traceback") :].splitlines()
    assert trace[1].strip().startswith(f'File "{PROGRAMS / "ending.py"}"')
    assert "unilaunch/rank" not in job.stderr


def test_a_traceback_has_no_wrapper_of_a_backend(openmpi5: Launcher, tmp_path: Path) -> None:
    """Rank 1 leaves, and rank 0's barrier fails in torch, behind our measure of its waits."""
    (tmp_path / "leave.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank():\n    raise SystemExit\ndist.barrier()\n"
    )
    job = openmpi5.unilaunch(2, ["run", "leave.py"], tmp_path)
    trace = (job.output / "rank.0" / "stderr").read_text()
    assert "leave.py" in trace
    assert "work.wait()" in trace
    assert "unilaunch_torch" not in trace


def test_a_rank_can_become_another_program(openmpi5: Launcher, tmp_path: Path) -> None:
    """A wrapper's usual last line; the port that it held for the program is free then."""
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_world_size())\n"
    )
    (tmp_path / "wrapper.py").write_text("import os, sys\nos.execv(sys.executable, [sys.executable, 'train.py'])\n")
    job = openmpi5.unilaunch(2, ["run", "wrapper.py"], tmp_path).check()
    assert (job.output / "rank.1" / "stdout").read_text() == "2\n"


@pytest.mark.parametrize("broken", [False, True])
def test_a_programs_excepthook_is_called(tmp_path: Path, *, broken: bool) -> None:
    """It shows the traceback in its own way, and may send it somewhere; if it fails, the traceback is shown."""
    body = "raise SystemExit" if broken else "print('HOOK', kind.__name__, error, trace.tb_lineno, file=sys.stderr)"
    script = f"import sys\ndef hook(kind, error, trace): {body}\nsys.excepthook = hook\nraise ValueError('broken')\n"
    (tmp_path / "hook.py").write_text(script)
    job = alone(["-m", "unilaunch", "run", "hook.py"], tmp_path)
    assert job.returncode == 1
    log = (job.output / "rank.0" / "stderr").read_text()
    assert ("Traceback" in log) is broken
    assert ("Traceback" in job.stderr) is broken
    assert broken or "HOOK ValueError broken 4\n" in job.stderr
    assert json.loads((job.output / "rank.0" / "failure.json").read_text())["traceback"]


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


@pytest.mark.parametrize("name", ["tool", "package.tool", "package"])
def test_a_module_runs_as_main(name: str, tmp_path: Path) -> None:
    """With this folder first in sys.path, as with python -m; it is __main__ to the end."""
    (tmp_path / "package").mkdir()
    for file in ("tool", "package/tool", "package/__main__", "package/__init__"):
        (tmp_path / f"{file}.py").write_text("" if "init" in file else MODULE)
    expected = alone(["-m", name, "a", "--b=c"], tmp_path).check().stdout
    assert alone(["-m", "unilaunch", "run", "-m", name, "--", "a", "--b=c"], tmp_path).check().stdout == expected


def test_a_script_alone_has_a_world_of_one_and_triton_reports_no_leak(tmp_path: Path) -> None:
    """As under torchrun with one process. Triton would, of all that the import has exempted from the collector."""
    triton = "import triton._C.libtriton\n" if find_spec("triton") else ""  # MindSpore imports it
    (tmp_path / "main.py").write_text(
        f"{triton}import torch\nimport os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "print(f\"{dist.get_rank()}/{dist.get_world_size()} local {os.environ['LOCAL_RANK']}\")\n"
    )
    job = alone(["-m", "unilaunch", "run", "main.py"], tmp_path).check()
    assert (job.stdout, job.stderr) == ("0/1 local 0\n", "")


def test_without_a_folder_of_its_own_the_users_stay(tmp_path: Path) -> None:
    """With -P Python adds none, and the first place is then the user's."""
    for folder, text in (("lib", "who = 'the library'"), ("sub", "raise RuntimeError")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "wanted.py").write_text(text)
    (tmp_path / "sub" / "main.py").write_text("import wanted\nprint(wanted.who)\n")
    variables = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path / "lib")}
    for target in (["sub/main.py"], ["-m", "unilaunch", "run", "sub/main.py"]):
        assert alone(target, tmp_path, variables).check().stdout == "the library\n"


def test_files_of_the_current_folder_replace_no_module_of_python(tmp_path: Path) -> None:
    """Unless the script is there; its sys.path is that of plain Python."""
    for name in ("socket.py", "json.py", "sub/main.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import sys\nprint(sys.path)\n" if "main" in name else "raise RuntimeError")
    expected = alone(["sub/main.py"], tmp_path).check().stdout
    assert alone(["-m", "unilaunch", "run", "sub/main.py"], tmp_path).check().stdout == expected


def test_a_functions_value_is_kept_by_rank(openmpi5: Launcher, tmp_path: Path) -> None:
    """As JSON."""
    shutil.copy(PROGRAMS / "package_of_functions.py", tmp_path)
    job = openmpi5.unilaunch(2, ["run", "package_of_functions:add", "--", "2", "second=3"], tmp_path).check()
    for rank in range(2):
        value = json.loads((job.output / f"rank.{rank}" / "value.json").read_text())
        assert value == {"sum": 5, "rank": rank, "size": 2, "variable": str(rank)}


@pytest.mark.parametrize(("function", "words"), [
    ("unwritable", "returned a value that cannot be sent"),
    ("missing", "has no missing"),
])  # fmt: skip
def test_a_function_that_cannot_be_used_is_refused(
    openmpi5: Launcher, function: str, words: str, tmp_path: Path
) -> None:
    """In one line."""
    shutil.copy(PROGRAMS / "package_of_functions.py", tmp_path)
    job = openmpi5.unilaunch(2, ["run", f"package_of_functions:{function}"], tmp_path)
    assert job.returncode == 2
    assert any(words in line for line in job.refusals())
    assert "Traceback" not in job.console


@pytest.mark.parametrize(("target", "words"), [
    (["missing.py"], "script missing.py: no such file"),
    (["-m", "no such"], "no name of a module"),
    (["gnc"], "no model 'gnc'; did you mean gcn?"),
    (["-n", "2", "ending.py"], "to start several type unilaunch launch -n 2 ending.py"),
])  # fmt: skip
def test_a_target_that_is_none_is_refused(target: list[str], words: str, tmp_path: Path) -> None:
    """Exit code 2, one line."""
    (tmp_path / "ending.py").touch()
    job = alone(["-m", "unilaunch", "run", *target], tmp_path)
    assert job.returncode == 2
    (line,) = job.refusals()
    assert words in line
