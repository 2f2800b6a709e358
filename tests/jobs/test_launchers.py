"""Every launcher that can be had here, each on a framework: the same ranks, and the loss curve of one process."""

import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.conftest import RUN
from jobs.mpirun import finish

ROOT, BIN = Path(__file__).parents[2], Path(sys.executable).parent
UNILAUNCH = [sys.executable, "-m", "unilaunch"]
#: The line before `run`, for 2 ranks.
LINES: dict[str, list[str]] = {
    "torchrun": [str(BIN / "torchrun"), "--nproc-per-node", "2", "-m", "unilaunch"],
    "msrun": [str(BIN / "msrun"), "--worker_num=2", "--local_worker_num=2", "--join=True", "--log_dir=msrun",
              str(ROOT / "unilaunch" / "__main__.py")],
    "PMIx": [str(BIN / "prterun"), "--allow-run-as-root", "--oversubscribe", "-n", "2", *UNILAUNCH],
    "MPICH": [str(ROOT / ".mpi" / "mpich" / "bin" / "mpiexec"), "-n", "2", *UNILAUNCH],
    "Intel MPI": [str(ROOT / ".mpi" / "intel" / "bin" / "mpiexec"), "-n", "2", *UNILAUNCH],
}  # fmt: skip
#: Of a torchrun that is gone.
LEFT = {
    "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "gone.invalid",
    "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "old", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
MEET = str(Path(__file__).parent / "programs" / "meet.py")


def _line_of(launcher: str) -> list[str]:
    if not Path(LINES[launcher][0]).exists():
        pytest.skip(f"no {LINES[launcher][0]}: see .ci/run")
    return LINES[launcher]


#: A framework beside the libraries of each MPI; where the ranks meet over sockets the one that the launcher is for.
@pytest.mark.parametrize(("launcher", "backend"), [
    ("torchrun", "torch"), ("msrun", "mindspore"), ("PMIx", "torch"), ("MPICH", "torch"), ("Intel MPI", "mindspore"),
])  # fmt: skip
def test_the_same_training_under_each(launcher: str, backend: str, curve: list[float], tmp_path: Path) -> None:
    """Through its MPI where it has one, and over sockets where it has none."""
    result = finish([*_line_of(launcher), *RUN, "--backend", backend], tmp_path, None).check().result
    assert (result["world_size"], result["launcher"], result["backend"]) == (2, launcher, backend)
    np.testing.assert_allclose(result["loss"], curve, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("launcher", "variables"), [("torchrun", {}), ("MPICH", LEFT)], ids=["torchrun", "MPICH"])
def test_a_script_for_torchrun(launcher: str, variables: dict[str, str], tmp_path: Path) -> None:
    """Torchrun serves the store itself; under others unilaunch does, whatever torchrun has left in the shell."""
    job = finish([*_line_of(launcher), "run", MEET, "--", "--lr", "0.01"], tmp_path, variables).check()
    for rank in range(2):
        assert job.said(rank).startswith(f"{rank}/2 local {rank} elastic True 4.985000 4.985000 ")
