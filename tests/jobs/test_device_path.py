"""What runs between devices (rendezvous, process group, tensors through the collectives), run for real over gloo."""

from pathlib import Path

from jobs.mpirun import Launcher

PROGRAM = str(Path(__file__).parent / "programs" / "device_path.py")


def test_collectives_of_devices_are_those_of_the_host(openmpi5: Launcher, tmp_path: Path) -> None:
    """On three ranks that exchange unequally many rows: what a network then trains is in tests/backends."""
    assert "lo the same" in openmpi5.unilaunch(3, ["run", PROGRAM], tmp_path).check().stdout
