"""The output folder: names, an earlier run's output that is never lost, and the user's files, which stay."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unilaunch.errors import InputError
from unilaunch.folder import claim
from unilaunch.folder.files import write_json, write_users
from unilaunch.folder.folder import OutputFolder, Use
from unilaunch.monitor.inbox import RankSeen
from unilaunch.monitor.reports import keep_reports, write_report

NOBODY = 65534  # the tests that act as another user need root


@contextmanager
def _running(
    root: Path, run_id: str, size: int = 1, use: Use | None = None, order: Random | None = None
) -> Iterator[list[OutputFolder]]:
    """Be the ranks of a run, in some order, whose agents have exited at the end."""
    ranks = order.sample(range(size), size) if order else range(size)
    folders = [OutputFolder(root, rank, size, run_id, use or Use()) for rank in ranks]
    try:
        for folder in folders:
            folder.claim()
        yield folders
    finally:
        for folder in folders:
            folder.let_go()


def _open(root: Path, size: int, run_id: str, use: Use | None = None) -> list[OutputFolder]:
    """Return the folders of a run that is over."""
    with _running(root, run_id, size, use) as folders:
        for folder in reversed(folders):
            folder.open()
            (folder.rank_dir / "stdout").write_text(f"{run_id}, rank {folder.rank}")
    return folders


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".unilaunch")


def test_runs_of_one_name_are_all_kept(tmp_path: Path) -> None:
    """Open MPI 4 can give two runs one name, and Slurm does when it puts a job into the queue again."""
    for number in range(4):
        _open(tmp_path, 1, "same")[0].write_result({"number": number})
    kept = tmp_path / "previous" / "same"
    assert _names(kept) == ["rank.0", "rank.0~2", "rank.0~3", "result.json", "result.json~2", "result.json~3"]
    assert json.loads((kept / "result.json~3").read_text()) == {"number": 2}


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_nothing_is_lost_in_whatever_order_the_ranks_come(sizes: list[int], order: Random) -> None:
    """Several runs of several sizes: each rank's output of each run is there once, and the last run's is in place."""
    with TemporaryDirectory() as name:
        root = Path(name)
        for run, size in enumerate(sizes):
            with _running(root, f"run {run}", size, order=order) as folders:
                for folder in folders:
                    folder.open()
                    (folder.rank_dir / "stdout").write_text(f"run {run} rank {folder.rank}")
                    if folder.rank == 0:
                        folder.write_result({"run": run})
        written = [f"run {run} rank {rank}" for run, size in enumerate(sizes) for rank in range(size)]
        assert sorted(path.read_text() for path in root.rglob("stdout")) == sorted(written)
        width = len(str(sizes[-1] - 1))  # as Open MPI pads them: a listing is in their order
        assert sorted(path.name for path in root.glob("rank.*")) == [f"rank.{one:0{width}}" for one in range(sizes[-1])]
        results = [json.loads(path.read_text())["run"] for path in root.rglob("result.json*")]
        assert sorted(results) == list(range(len(sizes)))


@pytest.mark.parametrize("name", ["rank.0", "rank.1", "spec.json", "result.json"])
def test_what_is_the_users_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    """A name that the run would write: one line says what to do, and nothing has been moved or made."""
    kept = tmp_path / name
    if name.startswith("rank"):
        _open(tmp_path, 2, "first")
        kept.rename(tmp_path / "away")
        kept.mkdir()
        kept /= "thesis"
    kept.write_text("only copy")
    before = _names(tmp_path)
    refused = pytest.raises(InputError, match=f"--output-dir {tmp_path}: {name} is there")
    with refused, _running(tmp_path, "second", 2):
        pass
    assert (_names(tmp_path), kept.read_text()) == (before, "only copy")


def test_a_report_does_not_take_the_place_of_the_users(tmp_path: Path) -> None:
    """It lies with rank 0's output, and one line says so; a report of ours is moved aside by the next run."""
    (report := tmp_path / "report.json").write_text("the user's")
    (folder,) = _open(tmp_path, 1, "first")
    assert str(folder.rank_dir / "report.json") in write_report(tmp_path, "first", {"of": "first"}, folder.rank_dir)
    assert report.read_text() == "the user's"
    report.unlink()
    for of in ("first", "first, late"):
        write_report(tmp_path, "first", {"of": of}, folder.rank_dir)
        _open(tmp_path, 1, "second")
        assert not report.exists()
    assert json.loads((tmp_path / "previous" / "first" / "report.json").read_text()) == {"of": "first"}


def test_a_models_files_and_checkpoints_are_moved_aside(tmp_path: Path) -> None:
    """Files also by a run that writes none; checkpoints that a run made, unless the next one resumes."""
    for run, resumes, files in (("first", False, ["a.npz"]), ("second", True, []), ("third", False, [])):
        with _running(tmp_path, run, use=Use(resumes=resumes, files=files)) as (folder,):
            folder.open()
            assert folder.checkpoints.exists() == resumes
            assert not (tmp_path / "a.npz").exists()
            for file in (folder.make_checkpoints() / f"{run}.safetensors", *(tmp_path / name for name in files)):
                file.touch()
    assert _names(tmp_path / "checkpoints") == ["third.safetensors"]
    first = tmp_path / "previous" / "first"
    assert _names(first / "checkpoints") == ["first.safetensors", "second.safetensors"]
    assert (first / "a.npz").exists()


def test_a_models_files_and_checkpoints_of_the_user_are_refused(tmp_path: Path) -> None:
    """Before one of them is taken for old; what lies in somebody's own folder is not moved with it."""
    (checkpoints := tmp_path / "checkpoints").mkdir()
    (checkpoints / "best.pt").write_text("weights")
    _open(checkpoints, 1, "evaluation")
    (folder,) = _open(tmp_path, 1, "training")
    with pytest.raises(InputError, match=r"checkpoints is there, and unilaunch did not make it.*--checkpoint-dir"):
        folder.make_checkpoints("give --checkpoint-dir")
    assert (checkpoints / "best.pt").read_text() == "weights"
    (tmp_path / "a.npz").touch()
    with pytest.raises(InputError, match=r"a\.npz is there, and unilaunch did not make it"):
        OutputFolder(tmp_path, 0, 1, "third", Use(files=["a.npz"])).claim()


@pytest.mark.parametrize("end", [OutputFolder.let_go, lambda folder: claim.release(folder.root, "first")])
def test_a_run_waits_for_the_last_guards_of_the_one_before(
    end: Callable[[OutputFolder], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end, or whoever saw the job end releases its folder, and no other: a file server may hold a lost lock."""
    monkeypatch.setattr(claim, "_PATIENCE", 20.0)
    (first,) = _open(tmp_path, 1, "first")
    first.claim()
    claim.release(tmp_path, "another")
    assert claim.is_held(tmp_path)
    second = OutputFolder(tmp_path, 0, 1, "second")
    with ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(second.claim)
        time.sleep(0.3)
        assert not claimed.done()
        end(first)
        claimed.result(timeout=60)
    first.let_go()
    second.let_go()
    assert not claim.is_held(tmp_path)


def test_a_job_is_seen_on_a_file_system_that_locks_only_what_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS 4: an exclusive lock needs a file that is open to be written."""
    lock = fcntl.flock

    def flock(descriptor: int, kind: int) -> None:
        is_read = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        lock(99_999 if kind & fcntl.LOCK_EX and is_read else descriptor, kind)  # EBADF

    monkeypatch.setattr(fcntl, "flock", flock)
    with _running(tmp_path, "run"):
        assert claim.is_held(tmp_path)
    assert not claim.is_held(tmp_path)


def test_reports_from_other_hosts_follow_the_same_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier run's are moved, the user's own stay, and what cannot be kept is said in a line."""
    keep_reports(tmp_path, 2, {0: RankSeen(run="first", host="node1", value=1)})
    (tmp_path / "rank.1").mkdir()
    for name in ("rank.1/thesis", "result.json"):
        (tmp_path / name).write_text("only copy")
    keep_reports(tmp_path, 2, {rank: RankSeen(run="second", host="node1", value=rank) for rank in range(2)})
    assert _names(tmp_path / "previous" / "first") == ["rank.0"]
    assert json.loads((tmp_path / "rank.0" / "value.json").read_text()) == 0
    keep_reports(tmp_path, 2, {0: RankSeen(run="third", host="node1", result={})})
    assert {(tmp_path / name).read_text() for name in ("rank.1/thesis", "result.json")} == {"only copy"}
    assert "unilaunch: the messages of rank 1 on node1 are not kept here: --output-dir " in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.parametrize("plant", [
    "mkdir -p out/rank.0; ln -s ../../../stderr out/rank.0/stderr", "ln -s ../mine out",
])  # fmt: skip
def test_another_users_folder_is_refused(plant: str) -> None:
    """In it he could make a link to a file of this user; a link of his leads wherever he likes."""
    with TemporaryDirectory() as name:
        top = Path(name)
        for folder, mode in ((top, 0o755), (top / "shared", 0o1777), (top / "mine", 0o755)):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
        (top / "stderr").write_text("mine\n")
        subprocess.run(["/bin/sh", "-c", plant], cwd=top / "shared", user=NOBODY, check=True)
        output = OutputFolder(top / "shared" / "out", 0, 1, "run")
        for step in (output.claim, output.open):
            with pytest.raises(InputError, match=rf"shared/out: it belongs to another user \(uid {NOBODY}\)"):
                step()
        assert (top / "stderr").read_text() == "mine\n"
        assert not list((top / "mine").iterdir())
        os.chown(top / "shared", NOBODY, NOBODY)  # others could put another folder in the place of one of a file server
        with pytest.raises(InputError, match=f"is in {top}/shared, where other users can write"):
            OutputFolder(top / "shared" / "new", 0, 1, "run", Use(foreign=True)).claim()
        _open(top / "mine", 1, "run", Use(foreign=True))


@pytest.mark.parametrize("name", ["events.jsonl", "value.json", "stderr"])
def test_no_link_is_followed(name: str, tmp_path: Path) -> None:
    """In a rank's folder somebody of the group may have made one."""
    (folder,) = _open(tmp_path / "out", 1, "run")
    (target := tmp_path / "target").write_text("mine\n")
    (folder.rank_dir / name).unlink(missing_ok=True)
    for link in (name, f".value.json.{os.getpid()}"):
        (folder.rank_dir / link).symlink_to(target)
    folder.record(phase="train")
    folder.append_stderr("a line\n")
    folder.write_value(1)
    assert target.read_text() == "mine\n"


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A value that JSON cannot say leaves the earlier file; a file's name that is no UTF-8 can be said."""
    write_json(tmp_path / "a.json", {"a": "file\udce9 é"})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": "file? é"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_that_the_user_names_may_be_a_link_or_a_device(tmp_path: Path) -> None:
    """`--output /dev/null` as root replaced the device by a file; a file that a shell appends to must stay too."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_users(tmp_path / "link", "one")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "file").read_text()) == (True, "one")
    code = "import pathlib, unilaunch.folder.files as files; files.write_users(pathlib.Path('/dev/stdout'), 'b')"
    line = ["sh", "-c", 'printf a > log; "$0" -c "$1" >> log', sys.executable, code]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "ab"
