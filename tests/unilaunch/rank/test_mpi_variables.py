"""What MPI finds in the environment: the transport of one host, and nothing that the user exported."""

import os

import pytest

from unilaunch.rank import mpi
from unilaunch.world import LauncherInfo

ONE_HOST = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"}
LIBRARY = {mpi.LIBRARY: "/opt/libmpi.so"}
YIELD = "OMPI_MCA_mpi_yield_when_idle"
EXPORTED = {YIELD: "0"}  # the rule for it has its own test; the machine may have one processor


def _found(version: str, size: int, local_size: int) -> LauncherInfo:
    return LauncherInfo(f"Open MPI {version}", 0, size, 0, local_size, "run", {}, name="openmpi")


@pytest.mark.parametrize(
    ("found", "exported", "expected"),
    [
        (_found("4", 2, 2), {}, ONE_HOST),
        (_found("5", 2, 2), {}, ONE_HOST | {"OMPI_MCA_mtl": "^ofi"}),
        (_found("5", 4, 2), {}, {}),
        (_found("5", 2, 2), {"OMPI_MCA_btl": "tcp,self"}, {}),
        (_found("4", 2, 2), {"OMPI_MCA_pml": "ucx"}, {}),
    ],
    ids=["one host, 4", "one host, 5", "several hosts", "the user's btl", "the user's pml"],
)
def test_transport(found: LauncherInfo, exported: dict[str, str], expected: dict[str, str]) -> None:
    """Shared memory on one host only, and only where the user chose none."""
    assert mpi.variables(found, exported | LIBRARY | EXPORTED) == expected


@pytest.mark.parametrize(("exported", "expected"), [({}, "1"), (EXPORTED, None)])
def test_more_ranks_than_processors_give_way(exported: dict[str, str], expected: str | None) -> None:
    """Unless the user said otherwise."""
    many = (os.cpu_count() or 1) + 1
    chosen = mpi.variables(_found("4", 2 * many, many), exported | LIBRARY)
    assert chosen.get(YIELD) == expected


def test_no_mpirun_above_means_no_library_is_chosen() -> None:
    """Pytest was started by no mpirun: mpi4py finds the library itself."""
    assert mpi.variables(_found("5", 4, 2), EXPORTED) == {}
