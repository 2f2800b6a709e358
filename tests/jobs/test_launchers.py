"""Every launcher that can be had here, each on a framework: the same ranks, and the loss curve of one process."""

import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.conftest import RUN
from jobs.mpirun import finish

BIN = Path(sys.executable).parent
MPI = Path(__file__).parents[2] / ".mpi"
MAIN = Path(__file__).parents[2] / "unilaunch" / "__main__.py"
#: The line before `-m unilaunch run`, for 2 ranks; and what result.json calls it.
LAUNCHERS: dict[str, tuple[list[str], str]] = {
    "torchrun": ([str(BIN / "torchrun"), "--nproc-per-node", "2", "-m", "unilaunch"], "torchrun"),
    "msrun": (
        [str(BIN / "msrun"), "--worker_num", "2", "--local_worker_num", "2", "--join", "True", "--log_dir", "msrun",
         str(MAIN)],
        "msrun",
    ),
    "prterun": (
        [str(BIN / "prterun"), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-m", "unilaunch"],
        "PMIx",
    ),
    "MPICH": ([str(MPI / "mpich" / "bin" / "mpiexec"), "-n", "2", sys.executable, "-m", "unilaunch"], "MPICH"),
    "Intel MPI": ([str(MPI / "intel" / "bin" / "mpiexec"), "-n", "2", sys.executable, "-m", "unilaunch"], "Intel MPI"),
}  # fmt: skip
#: A framework beside the libraries of each MPI; where the ranks meet over sockets the one that the launcher is for.
TRAININGS = [
    ("torchrun", "torch"), ("msrun", "mindspore"), ("prterun", "torch"), ("MPICH", "torch"), ("Intel MPI", "mindspore"),
]  # fmt: skip
#: Of a torchrun that is gone.
LEFT = {
    "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "gone.invalid",
    "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "old", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
MEET = str(Path(__file__).parent / "programs" / "meet.py")


def _line_of(launcher: str) -> tuple[list[str], str]:
    line, name = LAUNCHERS[launcher]
    if not Path(line[0]).exists():
        pytest.skip(f"no {line[0]}: see .ci/run")
    return line, name


@pytest.mark.parametrize(("launcher", "backend"), TRAININGS)
def test_the_same_training_under_each_launcher(
    launcher: str, backend: str, curve: list[float], tmp_path: Path
) -> None:  # fmt: skip
    """Through its MPI where it has one, and over sockets where it has none."""
    line, name = _line_of(launcher)
    result = finish([*line, *RUN, "--backend", backend], tmp_path, None).check().result
    assert (result["world_size"], result["launcher"], result["backend"]) == (2, name, backend)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("launcher", "variables"), [("torchrun", {}), ("MPICH", LEFT)], ids=["torchrun", "MPICH"])
def test_a_script_for_torchrun(launcher: str, variables: dict[str, str], tmp_path: Path) -> None:
    """Torchrun serves the store itself; under others unilaunch does, whatever torchrun has left in the shell."""
    job = finish([*_line_of(launcher)[0], "run", MEET, "--", "--lr", "0.01"], tmp_path, variables).check()
    said = [job.said(rank) for rank in range(2)]
    assert [text.partition(" elastic")[0] for text in said] == ["0/2 local 0", "1/2 local 1"]
    assert all(" elastic True 4.985000 4.985000 " in text for text in said)


def test_torchruns_variables_in_the_shell_do_not_count_under_mpirun(tmp_path: Path) -> None:
    """Explain says why."""
    line = [str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-m", "unilaunch"]
    shown = finish([*line, "explain"], tmp_path, LEFT).check().stdout
    assert "rank 0 of 2" in shown
    assert "ignored  torchrun: rank 0 of 8" in shown
    assert "openmpi is the nearest of this process's ancestors" in shown
