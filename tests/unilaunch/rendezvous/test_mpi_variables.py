"""What MPI finds in the environment: the transport of one host, and nothing that the user exported."""

import os
from pathlib import Path

import pytest

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.ancestry import Daemon
from unilaunch.launchers.openmpi import OpenMpi, has_fabric
from unilaunch.rendezvous import mpi

SHARED_MEMORY = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}
NETWORK = "OMPI_MCA_btl_tcp_if_include"
ONE_HOST = SHARED_MEMORY | {NETWORK: "lo"}
LIBRARY = {mpi.LIBRARY: "/opt/libmpi.so"}
YIELD = "OMPI_MCA_mpi_yield_when_idle"
PORTS = {"OMPI_MCA_btl_tcp_port_min_v4": "7000"}  # of the user's; the rule for them too
EXPORTED = {YIELD: "0"}  # the rule for it has its own test; the machine may have one processor


def _found(version: str, size: int, local_size: int) -> LauncherInfo:
    return LauncherInfo(f"Open MPI {version}", 0, size, 0, local_size, "run", {}, name="openmpi")


@pytest.mark.parametrize(("found", "exported", "file", "expected"), [
    (_found("4", 2, 2), {}, "", ONE_HOST),
    (_found("5", 2, 2), {}, "", ONE_HOST | {"OMPI_MCA_mtl": "^ofi"}),
    (_found("4", 2, 2), {NETWORK: "eth0"}, "", SHARED_MEMORY),
    (_found("5", 4, 2), PORTS, "", {}),
    (_found("5", 2, 2), {"OMPI_MCA_btl": "tcp,self"}, "", {}),
    (_found("5", 2, 2), {}, "btl = tcp,self", {}),  # shared memory may not be allowed, say
], ids=["one host, 4", "one host, 5", "the user's network", "several hosts", "the user's btl", "a file"])  # fmt: skip
def test_transport(
    found: LauncherInfo, exported: dict[str, str], file: str, expected: dict[str, str], tmp_path: Path
) -> None:
    """On one host shared memory, with TCP for spawned processes; only where the user chose none."""
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text(f"{file}\n")
    assert mpi.variables(found, exported | {"HOME": str(tmp_path)} | LIBRARY | EXPORTED) == expected


@pytest.mark.parametrize("own", ["#btl = tcp", "btl_tcp_if_include = eth0", " btl = tcp,self", "pml=ucx"])
@pytest.mark.parametrize("place", [".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"])
def test_open_mpi_5_does_not_look_for_a_network_that_is_not_there(own: str, place: str, tmp_path: Path) -> None:
    """On several hosts; unless a file chooses the transport: the user's, or the installation's."""
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(f"# comment\n{own}\n")
    daemon = Daemon(os.getpid(), tmp_path / "bin" / "prterun", ())
    chosen = OpenMpi().mpi_variables(_found("5", 4, 2), daemon, {"HOME": str(tmp_path)} | PORTS)
    chosen.pop(YIELD, None)
    expects = not (own.startswith((" btl", "pml")) or has_fabric())
    assert chosen == ({"OMPI_MCA_btl": "^ofi"} if expects else {})
    assert "OMPI_MCA_btl" not in OpenMpi().mpi_variables(_found("4", 4, 2), daemon, {"HOME": str(tmp_path)})


@pytest.mark.parametrize("device", ["sys/class/infiniband/mlx5_0", "sys/class/cxi/cxi0", "dev/hfi1_0"])
def test_a_fabric_is_a_device_of_the_kernel(device: str, tmp_path: Path) -> None:
    """A driver without a device is none."""
    (tmp_path / device).parent.mkdir(parents=True)
    assert not has_fabric(tmp_path)
    (tmp_path / device).touch()
    assert has_fabric(tmp_path)


@pytest.mark.parametrize(("exported", "expected"), [({}, "1"), (EXPORTED, None)])
def test_more_ranks_than_processors_give_way(exported: dict[str, str], expected: str | None) -> None:
    """Unless the user said otherwise."""
    many = (os.cpu_count() or 1) + 1
    chosen = mpi.variables(_found("4", 2 * many, many), exported | LIBRARY)
    assert chosen.get(YIELD) == expected
