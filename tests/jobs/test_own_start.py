"""Scripts that call `unilaunch.init()`, speak MPI themselves, or meet at an address of their own."""

import sys
import time
from pathlib import Path

import pytest

from jobs.conftest import find_launcher
from jobs.mpirun import Launcher, alone, finish
from jobs.ports import free_ports

PROGRAMS, BIN = Path(__file__).parent / "programs", Path(sys.executable).parent
MPI = Path(__file__).parents[2] / ".mpi"
PROGRAM = str(PROGRAMS / "own_start.py")
TORCHRUN = [str(BIN / "torchrun"), "--nproc-per-node", "2"]
AS_ROOT = ["--allow-run-as-root", "--oversubscribe"]


def test_the_ranks_speak_through_what_has_started_them(openmpi5: Launcher, tmp_path: Path) -> None:
    """MPI under a bare mpirun, and the script goes on to use it as its own; sockets under torchrun; else nothing."""
    said = openmpi5.run(2, [PROGRAM, "mpi"], tmp_path).check().stdout
    for words in ("0/2 on cpu by MpiCollectives: 9.0", "1/2 on cpu by MpiCollectives: 9.0", "MPI counts 2"):
        assert words in said
    assert "1/2 on cpu by TcpCollectives: 9.0" in finish([*TORCHRUN, PROGRAM], tmp_path, None).check().stdout
    assert "0/1 on cpu by Alone: 3.0" in alone([PROGRAM], tmp_path).check().stdout


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
    job = finish([*line, PROGRAM, "fail"], tmp_path, None)
    assert (job.returncode == 0, "SystemError: boom" in job.stderr) == (False, True)
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 30


def test_the_device_is_the_scripts_choice(tmp_path: Path) -> None:
    """Also after a first call that took the best: the advice of the refusal, device='cpu', works."""
    gpu = "from unilaunch.rank import identity\nidentity.visible_devices = lambda _: {'cuda': ['GPU-1'], 'npu': []}\n"
    (tmp_path / "choose.py").write_text(
        f"import unilaunch\n{gpu}from unilaunch.rank import current\n"
        "devices = [unilaunch.init().device, current.join('cpu').world.device, unilaunch.init().device]\n"
        "print(*devices, unilaunch.init(device='cuda').device)\n"
    )
    (tmp_path / "crowded.py").write_text(f"{gpu}import sys, unilaunch\nprint(unilaunch.init(*sys.argv[1:]).device)\n")
    seen = {"CUDA_VISIBLE_DEVICES": "GPU-1"}  # for the message; this host may have no such device
    assert alone(["choose.py"], tmp_path, seen).check().stdout == "cuda:0 cpu cpu cuda:0\n"
    crowded = [*TORCHRUN, "crowded.py"]
    assert "start at most 1 there, or take --device cpu" in finish(crowded, tmp_path, seen).stderr
    assert finish([*crowded, "cpu"], tmp_path, seen).check().stdout.count("cpu") == 2  # lines may be mixed


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
