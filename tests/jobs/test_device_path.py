"""What runs between devices (rendezvous, process group, tensors through the collectives), run for real over gloo."""

from pathlib import Path

import pytest

from jobs.mpirun import Launcher

PROGRAM = str(Path(__file__).parent / "programs" / "device_path.py")


@pytest.mark.parametrize(("launcher", "ranks"), [("5.0", 1), ("4.1", 2), ("5.0", 3)], indirect=["launcher"])
def test_device_network_trains_as_the_host_network(launcher: Launcher, ranks: int, tmp_path: Path) -> None:
    """Losses to 1e-10 and the same bytes, for each order of the layers' products."""
    job = launcher.unilaunch(ranks, ["run", PROGRAM], tmp_path).check()
    assert "lo the same" in job.stdout
