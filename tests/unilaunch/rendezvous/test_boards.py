"""Where ranks find rank 0: which board, and the file that only this user can read."""

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.machine.connections import new_secret
from unilaunch.rendezvous.boards import Contact, FileBoard, LaunchBoard, PublicBoard, find_board
from unilaunch.rendezvous.secret_file import find_folder
from unilaunch.spec.variables import MONITOR

STRANGER = pytest.param(
    "another user's",
    marks=[
        pytest.mark.system,
        pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user"),
    ],
)


def _found(rank: int, size: int, run_id: str) -> LauncherInfo:
    return LauncherInfo("test", rank, size, rank, size, run_id, {}, mpi=False, rank_0_hosts=("127.0.0.1",))


def test_ranks_elsewhere_do_not_call_a_launch_that_listens_on_loopback() -> None:
    """It knows of this host only, and a resource manager placed ranks on others: they meet as under a bare mpirun."""
    one_host, two_hosts = _found(0, 2, "run"), replace(_found(0, 2, "run"), local_size=1, rank_0_hosts=("node0",))
    kinds = {}
    for name, found in {"several": two_hosts, "one": one_host}.items():
        for where in ("127.0.0.1 1 00 15", "10.0.0.1,127.0.0.1 1 00 15"):
            board = find_board(found, {MONITOR: where}, insecure=True)
            kinds[name, where.partition(" ")[0]] = type(board)
    assert kinds == {
        ("several", "127.0.0.1"): PublicBoard, ("several", "10.0.0.1,127.0.0.1"): LaunchBoard,
        ("one", "127.0.0.1"): LaunchBoard, ("one", "10.0.0.1,127.0.0.1"): LaunchBoard,
    }  # fmt: skip


def test_jobs_of_one_name_on_two_hosts_that_share_a_home() -> None:
    """Plain torchrun has one name everywhere; the file of a job on one host is that host's."""
    one_host, several = (
        _found(0, 2, "torchrun-none-127.0.0.1-29500"),
        LauncherInfo("test", 0, 2, 0, 1, "torchrun-none-127.0.0.1-29500", {}),
    )
    names = []
    for boot in ("a", "b"):
        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
            file = Path(folder, "boot_id")
            file.write_text(boot)
            patch.setattr("unilaunch.rendezvous.boards.BOOT_ID", file)
            far = replace(several, rank_0_hosts=("node0",))
            names += [FileBoard(found, os.environ).name for found in (one_host, far)]  # noqa: TID251
    assert names[0] != names[2]
    assert names[1] == names[3]


@pytest.mark.parametrize("fault", [STRANGER, "writable", "a link"])
def test_a_folder_that_others_can_write_is_not_taken(fault: str, tmp_path: Path) -> None:
    """The next one is, for a job on one host; or else the job is refused."""
    folder = tmp_path / "unilaunch" / "rendezvous"
    folder.mkdir(parents=True, mode=0o700)
    if fault == "another user's":
        os.chown(folder, 65534, 65534)
    elif fault == "writable":
        folder.chmod(0o777)
    else:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    environ = {"XDG_CACHE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert find_folder(environ, one_host=True) == tmp_path / "run" / "unilaunch"
    with pytest.raises(EnvironmentMismatchError, match="--insecure-rendezvous"):
        find_folder(environ, one_host=False)


@pytest.mark.parametrize(
    "fault",
    [STRANGER, "readable", "readable by the group", "writable by the group", "a link", "huge", "nonsense"],
)
def test_a_file_that_others_could_have_made_is_not_believed(fault: str, cache: Path) -> None:
    """It is as if there were none."""
    found = _found(1, 2, uuid4().hex)
    board = FileBoard(found, {"XDG_CACHE_HOME": str(cache.parents[1])})
    file = cache / board.name
    text = Contact([("127.0.0.1", 1)], new_secret()).text
    file.write_text({"huge": text + "," * 5000, "nonsense": "x"}.get(fault, text))
    file.chmod({"readable": 0o644, "readable by the group": 0o640, "writable by the group": 0o620}.get(fault, 0o600))
    if fault == "another user's":
        os.chown(file, 65534, 65534)
    elif fault == "a link":
        file.rename(cache / "elsewhere")
        file.symlink_to(cache / "elsewhere")
    assert board.find() is None
    file.unlink()
    (cache / "elsewhere").unlink(missing_ok=True)
