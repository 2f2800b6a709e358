"""The hostfiles that users copy are ones that mpirun reads."""

from pathlib import Path

import pytest

from jobs.mpirun import Launcher, finish
from unilaunch.spec.hostfile import read_hostfile

HOSTFILES = sorted((Path(__file__).parents[2] / "hostfiles").iterdir())
#: Slots of all hosts together.
SLOTS = {
    "many_nodes": 128, "mpich_style": 12, "one_node": 8, "other_user": 16, "two_nodes": 16, "unequal_nodes": 14,
    "workers_only": 16,
}  # fmt: skip
#: Those that mpirun itself reads.
OPEN_MPIS = ["one_node", "two_nodes", "unequal_nodes", "workers_only"]


@pytest.mark.parametrize("hostfile", HOSTFILES, ids=lambda path: path.name)
def test_each_hostfile_is_read(hostfile: Path) -> None:
    assert sum(host.slots or 0 for host in read_hostfile(hostfile)) == SLOTS[hostfile.name]


@pytest.mark.parametrize("name", OPEN_MPIS)
def test_hostfile_is_read_by_mpirun(launcher: Launcher, name: str, tmp_path: Path) -> None:
    """Mpirun counts the slots that the file gives."""
    hostfile = HOSTFILES[0].with_name(name)
    show = ["--display-allocation"] if launcher.version == "4.1" else ["--display", "allocation"]
    line = [str(launcher.path), "--allow-run-as-root", "--hostfile", str(hostfile), *show, "--do-not-launch"]
    shown = finish([*line, "-n", "1", "hostname"], tmp_path, None).console
    hosts = [text.split() for text in shown.splitlines() if "slots=" in text]
    if hosts:
        slots = {words[0]: int(words[1].removeprefix("slots=")) for words in hosts}
        assert sum(slots.values()) == SLOTS[hostfile.name]
    else:
        assert f"Total slots allocated {SLOTS[hostfile.name]}" in shown


def test_one_node_runs(openmpi5: Launcher, tmp_path: Path) -> None:
    """The first hostfile works as it stands; and one that mpirun does not parse, as Windows' editors write it.

    Launch tells mpirun the hosts in its own way.
    """
    (tmp_path / "say.py").write_text("print('there')\n")
    (tmp_path / "windows").write_text("\ufefflocalhost cpus=2\r\n", newline="")
    for hostfile in (str(HOSTFILES[0].with_name("one_node")), "windows"):
        job = openmpi5.launch(2, ["--hostfile", hostfile, "--bind-to", "none", "--console", "all", "say.py"], tmp_path)
        assert job.check().stdout.count("there") == 2
