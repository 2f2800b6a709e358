"""Which launchers stand above a process, from /proc."""

import subprocess
import sys
from pathlib import Path

import pytest

from unilaunch import launchers
from unilaunch.launchers import ancestry
from unilaunch.launchers.ancestry import Ancestor

SHOW = """
from unilaunch import launchers
nearest = next(launchers.ancestors())
print(next((name for name, launcher in launchers.known().items() if launcher.is_program(nearest)), None))
"""


def _launcher_of(ancestor: Ancestor) -> str | None:
    return next((name for name, launcher in launchers.known().items() if launcher.is_program(ancestor)), None)


@pytest.mark.parametrize(("program", "launcher"), [
    ("slurmstepd", "slurm"), ("prted", "openmpi"), ("hydra_pmi_proxy", "hydra"), ("sh", None),
])  # fmt: skip
def test_a_program_is_known_by_its_name(program: str, launcher: str | None, tmp_path: Path) -> None:
    """A shell under a launcher's name, which starts a process of its own."""
    path = tmp_path / program
    path.symlink_to("/bin/sh")  # the program's file is still the shell's: what is seen is the process's name
    line = [str(path), "-c", '"$0" -c "$1"; :', sys.executable, SHOW]
    shown = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert shown == f"{launcher}\n"


@pytest.mark.parametrize(("line", "launcher"), [
    ("python /opt/venv/bin/torchrun --nproc-per-node 2 train.py", "torchrun"),
    ("python -m torch.distributed.run train.py", "torchrun"),
    ("python -u -m torch.distributed.launch train.py", "torchrun"),
    ("python3 /usr/bin/msrun --worker_num 2 net.py", "msrun"),
    ("python train.py --name run --launcher torchrun", None),
    ("python", None),
])  # fmt: skip
def test_a_python_launcher_is_known_by_its_command_line(line: str, launcher: str | None) -> None:
    """By its first words only: what follows are the program's own arguments."""
    assert _launcher_of(Ancestor(("python3", "python3"), ancestry.read_scripts(line.encode().split(b" ")))) == launcher


def test_the_first_process_of_a_container_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be mpirun: `docker run IMAGE mpirun ...`."""
    monkeypatch.setattr("os.getppid", lambda: 1)
    assert [above.pid for above in ancestry.ancestors()] == [1]
