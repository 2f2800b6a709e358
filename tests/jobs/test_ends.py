"""What a program has written is in its files after every end of its rank, and the collector is as in plain Python."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.mpirun import Finished, Launcher, alone, processes_in, unilaunch, wait_until

WRITING = str(Path(__file__).parent / "programs" / "writing.py")
#: Python 3.12 itself freezes some hundred objects; a framework has 100,000.
STATE = "import gc, torch; print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() // 1000)"


def _start(launcher: Launcher, start: str, words: list[str], folder: Path) -> Finished:
    if start == "mpirun":
        return launcher.unilaunch(2, ["run", *words], folder)
    return launcher.launch(2, words, folder) if start == "launch" else unilaunch(["run", *words], folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


@cache
def _plain(how: str) -> dict[str, int]:
    """Return the size of each file after plain Python."""
    with TemporaryDirectory() as folder:
        alone([WRITING, {"ordered": "handled"}.get(how, how), folder], Path(folder))
        return _sizes(Path(folder))


@pytest.mark.parametrize(("start", "how", "modules"), [
    ("run", "exit", []), ("launch", "handled", []), ("mpirun", "interrupt", []), ("launch", "ordered", []),
    ("mpirun", "left behind", []), ("run", "fork", []), ("run", "raise", ["torch"]),
    ("launch", "left behind", ["torch"]), ("mpirun", "raise", ["mpi4py.MPI"]),
])  # fmt: skip
def test_no_byte_is_lost(openmpi5: Launcher, start: str, how: str, modules: list[str], tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    job = _start(openmpi5, start, [WRITING, how, str(files), *modules], tmp_path)
    wait_until(lambda: not list(processes_in(tmp_path)), 20)  # an agent may outlive mpirun for a moment
    expected, found = _plain(how), _sizes(files)
    lost = {name: f"{found.get(name, 0)} of {size}" for name, size in expected.items() if found.get(name, 0) < size}
    assert not lost, job.console
    assert len(expected) >= 10
    assert expected["text"] == 22


def test_the_collector_is_as_in_plain_python(openmpi5: Launcher, tmp_path: Path) -> None:
    """After the import of a framework, by the rank or for all ranks of a host."""
    (tmp_path / "state.py").write_text(STATE)
    plain = {*alone(["state.py"], tmp_path).check().stdout.splitlines()}
    for start in ("run", "launch"):
        assert {*_start(openmpi5, start, ["state.py"], tmp_path).check().stdout.splitlines()} == plain
