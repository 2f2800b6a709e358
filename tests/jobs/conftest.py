"""What the tests under a real mpirun share: both Open MPI versions, data, and folders."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.mpirun import BACKEND, NUMPY, Launcher, unilaunch

#: Where a launcher can be, by the version it must have.
LAUNCHERS = {
    "4.1": [Path("/usr/bin/mpirun"), Path("/usr/local/bin/mpirun")],
    "5.0": [Path(sys.executable).parent / "mpirun"],
}
#: A short training.
RUN = ["run", "--epochs", "10", "--data-dir", "data"]


@pytest.fixture(params=LAUNCHERS, ids=lambda version: f"openmpi-{version}", scope="session")
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return find_launcher(request.param)


@pytest.fixture(scope="session")
def openmpi5() -> Launcher:
    return find_launcher("5.0")


def find_launcher(version: str) -> Launcher:
    for path in filter(Path.exists, LAUNCHERS[version]):
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if f"(Open MPI) {version}" in shown:
            return Launcher(path, version)
    pytest.skip(f"no Open MPI {version} at {', '.join(map(str, LAUNCHERS[version]))}")


@pytest.fixture(params=["torch", "mindspore"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train with numpy (tests/numpy_backend) where no --backend is given: it starts in a fraction of the time."""
    monkeypatch.setenv("PYTHONPATH", NUMPY["PYTHONPATH"])
    monkeypatch.setenv(BACKEND, "numpy")


@pytest.fixture(scope="session")
def cora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with Cora's raw files, where partitions can be written."""
    raw = Path(__file__).parents[2].parent / "shared" / "datasets" / "planetoid"
    if not raw.is_dir():
        pytest.skip(f"no Cora files at {raw}")
    (folder := tmp_path_factory.mktemp("data") / "planetoid").mkdir()
    for file in raw.glob("ind.cora.*"):
        (folder / file.name).symlink_to(file)
    return folder.parent


@pytest.fixture(scope="session")
def curve(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of RUN in one process."""
    job = unilaunch([*RUN, "--backend", "numpy"], tmp_path_factory.mktemp("alone"), NUMPY)
    return list(job.check().result["loss"])
