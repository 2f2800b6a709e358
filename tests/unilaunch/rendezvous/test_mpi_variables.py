"""What MPI finds in the environment: the transport of one host, and nothing that the user exported."""

import os
from pathlib import Path

import pytest

from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.ancestry import Daemon
from unilaunch.launchers.openmpi import OpenMpi, has_fabric

SHARED_MEMORY = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}
NETWORK, YIELD = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_mpi_yield_when_idle"
ONE_HOST = SHARED_MEMORY | {NETWORK: "lo"}
NO_FABRIC = {} if has_fabric() else {"OMPI_MCA_btl": "^ofi"}  # 5 would look for a second for what is not there
EXPORTED = {YIELD: "0", "OMPI_MCA_btl_tcp_port_min_v4": "7000"}  # of the user's: the rules for them have tests too
Set = dict[str, str]
OWN, INSTALLED = ".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"


def _found(version: str, size: int, local_size: int) -> LauncherInfo:
    return LauncherInfo(f"Open MPI {version}", 0, size, 0, local_size, "run", {}, name="openmpi")


@pytest.mark.parametrize(("found", "exported", "file", "text", "expected"), [
    (_found("4", 2, 2), {}, OWN, "", ONE_HOST),
    (_found("5", 2, 2), {}, OWN, "", ONE_HOST | {"OMPI_MCA_mtl": "^ofi"}),
    (_found("4", 2, 2), {NETWORK: "eth0"}, OWN, "", SHARED_MEMORY),
    (_found("5", 2, 2), {"OMPI_MCA_btl": "tcp,self"}, OWN, "", {}),
    (_found("5", 2, 2), {}, OWN, "btl = tcp,self", {}),  # shared memory may not be allowed, say
    (_found("4", 4, 2), {}, OWN, "", {}),
    (_found("5", 4, 2), {}, OWN, "#btl = tcp\nbtl_tcp_if_include = eth0", NO_FABRIC),
    (_found("5", 4, 2), {}, OWN, "# comment\n btl = tcp,self", {}),
    (_found("5", 4, 2), {}, INSTALLED, "btl_tcp_if_include = eth0", NO_FABRIC),
    (_found("5", 4, 2), {}, INSTALLED, "pml=ucx", {}),
])  # fmt: skip
def test_transport(found: LauncherInfo, exported: Set, file: str, text: str, expected: Set, tmp_path: Path) -> None:
    """On one host shared memory, with TCP for spawned processes; only where the user or the installation chose none."""
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(f"{text}\n")
    daemon = Daemon(os.getpid(), tmp_path / "bin" / "prterun", ())
    assert OpenMpi().mpi_variables(found, daemon, exported | {"HOME": str(tmp_path)} | EXPORTED) == expected


@pytest.mark.parametrize("device", ["sys/class/infiniband/mlx5_0", "sys/class/cxi/cxi0", "dev/hfi1_0"])
def test_a_fabric_is_a_device_of_the_kernel(device: str, tmp_path: Path) -> None:
    (tmp_path / device).parent.mkdir(parents=True)  # a driver without a device is none
    assert not has_fabric(tmp_path)
    (tmp_path / device).touch()
    assert has_fabric(tmp_path)


def test_more_ranks_than_processors_give_way() -> None:
    many = (os.cpu_count() or 1) + 1
    for exported, expected in (({}, "1"), (EXPORTED, None)):
        assert OpenMpi().mpi_variables(_found("4", 2 * many, many), None, exported).get(YIELD) == expected
