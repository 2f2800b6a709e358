"""What runs between devices (rendezvous, process group, tensors through the collectives), run for real over gloo."""

from pathlib import Path

from jobs.mpirun import Launcher

PROGRAM = str(Path(__file__).parent / "programs" / "device_path.py")


def test_device_network_trains_as_the_host_network(openmpi5: Launcher, tmp_path: Path) -> None:
    """Losses to 1e-10 and the same bytes, for each order of the layers' products. One rank has no such collectives."""
    job = openmpi5.unilaunch(3, ["run", PROGRAM], tmp_path).check()
    assert "lo the same" in job.stdout
