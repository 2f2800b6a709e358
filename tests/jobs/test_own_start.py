"""`unilaunch.init()` in a script that unilaunch has not started."""

import sys
import time
from pathlib import Path

import pytest

from jobs.mpirun import Launcher, alone, finish
from jobs.ports import free_ports

PROGRAM = str(Path(__file__).parent / "programs" / "own_start.py")
GROUP = str(Path(__file__).parent / "programs" / "own_group.py")
TORCHRUN = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", PROGRAM]


def test_under_a_bare_mpirun_the_ranks_speak_through_mpi(openmpi5: Launcher, tmp_path: Path) -> None:
    """And the script goes on to use MPI as its own."""
    job = openmpi5.run(2, [PROGRAM, "mpi"], tmp_path).check()
    assert [f"{rank}/2 on cpu by MpiCollectives: 9.0" in job.stdout for rank in range(2)] == [True, True]
    assert "MPI counts 2" in job.stdout


def test_under_torchrun_through_sockets_and_alone_with_nobody(tmp_path: Path) -> None:
    """No MPI is needed."""
    job = finish(TORCHRUN, tmp_path, None).check()
    assert "1/2 on cpu by TcpCollectives: 9.0" in job.stdout
    assert "0/1 on cpu by Alone: 3.0" in alone([PROGRAM], tmp_path).check().stdout


def test_the_ranks_of_a_group_that_the_script_has_made_are_the_ranks(tmp_path: Path) -> None:
    """`mp.spawn` and `init_process_group`, with no launcher, also where a script or a shell has set some variables.

    A process that worked alone before does not go on beside others: each of the two would train on the whole graph.
    """
    job = alone([GROUP, *map(str, free_ports(3))], tmp_path)
    assert [job.stdout.count(f"rank {rank} of 2, the sums are [3.0, 3000.0]") for rank in range(2)] == [2, 2]
    assert job.stdout.count("the sums are") == 4
    assert job.returncode != 0
    assert "has a group of 2 ranks, and this process went on as rank 0 of 1" in job.stderr


@pytest.mark.parametrize("start", ["mpirun", "torchrun"])
def test_a_rank_that_fails_ends_the_others(start: str, openmpi5: Launcher, tmp_path: Path) -> None:
    """They wait for it in a collective, and its traceback is shown."""
    job = (
        openmpi5.run(2, [PROGRAM, "fail"], tmp_path)
        if start == "mpirun"
        else finish([*TORCHRUN, "fail"], tmp_path, None)
    )
    assert job.returncode != 0
    assert "SystemError: boom" in job.stderr
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 30


def test_the_device_is_the_scripts_choice(tmp_path: Path) -> None:
    """Also after a first call that took the best: the advice of the refusal, device='cpu', works."""
    gpu = "from unilaunch.rank import identity\nidentity.visible_devices = lambda _: {'cuda': ['GPU-1'], 'npu': []}\n"
    (tmp_path / "choose.py").write_text(
        "import unilaunch\n"
        f"{gpu}from unilaunch.rank import current\n"
        "devices = [unilaunch.init().device, current.join('cpu').world.device, unilaunch.init().device]\n"
        "print(*devices, unilaunch.init(device='cuda').device)\n"
    )
    (tmp_path / "crowded.py").write_text(f"{gpu}import sys, unilaunch\nprint(unilaunch.init(*sys.argv[1:]).device)\n")
    seen = {"CUDA_VISIBLE_DEVICES": "GPU-1"}  # for the message; this host may have no such device
    assert alone([str(tmp_path / "choose.py")], tmp_path, seen).check().stdout == "cuda:0 cpu cpu cuda:0\n"
    crowded = [*TORCHRUN[:-1], str(tmp_path / "crowded.py")]
    assert (
        "start at most 1 there, or take --device cpu (device='cpu' in Python)" in finish(crowded, tmp_path, seen).stderr
    )
    assert finish([*crowded, "cpu"], tmp_path, seen).check().stdout.count("cpu") == 2  # lines may be mixed
