"""The output folder: names, an earlier run's output that is never lost, and the user's files, which stay."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
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

#: What belongs to a folder of ours besides what the tests are about.
MARKER = ".unilaunch"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")


@contextmanager
def _running(root: Path, run_id: str, size: int = 1, use: Use | None = None) -> Iterator[list[OutputFolder]]:
    """Be the ranks of a run, whose agents have exited at the end."""
    folders = [OutputFolder(root, rank, size, run_id, use or Use()) for rank in range(size)]
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
    return sorted(path.name for path in folder.iterdir() if path.name != MARKER)


@pytest.mark.parametrize(("size", "name"), [(10, "rank.7"), (11, "rank.07")])
def test_ranks_are_padded_as_open_mpi_pads_them(size: int, name: str, tmp_path: Path) -> None:
    """So that a listing is in their order."""
    assert OutputFolder(tmp_path, 7, size, "run").rank_dir.name == name


def test_runs_of_one_name_are_all_kept(tmp_path: Path) -> None:
    """Open MPI 4 can give two runs one name, and Slurm does when it puts a job into the queue again."""
    for number in range(4):
        _open(tmp_path, 1, "same")[0].write_result({"number": number})
    kept = tmp_path / "previous" / "same"
    assert _names(kept) == ["rank.0", "rank.0~2", "rank.0~3", "result.json", "result.json~2", "result.json~3"]
    assert json.loads((kept / "result.json~3").read_text()) == {"number": 2}


@pytest.mark.parametrize("name", ["rank.0", "rank.1", "spec.json", "result.json"])
def test_what_is_the_users_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    """A name that the run would write: one line says what to do, and nothing has been moved or made."""
    if name.startswith("rank"):
        _open(tmp_path, 2, "first")
        (tmp_path / name).rename(tmp_path / "away")
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis").write_text("only copy")
    else:
        (tmp_path / name).write_text("only copy")
    before = _names(tmp_path)
    refused = pytest.raises(InputError, match=f"--output-dir {tmp_path}: {name} is there")
    with refused, _running(tmp_path, "second", 2):
        pass
    assert _names(tmp_path) == before
    kept = tmp_path / name / "thesis" if name.startswith("rank") else tmp_path / name
    assert kept.read_text() == "only copy"


def test_a_report_does_not_take_the_place_of_the_users(tmp_path: Path) -> None:
    """It lies with rank 0's output, and one line says so; a report of ours is moved aside by the next run."""
    (tmp_path / "report.json").write_text("the user's")
    (folder,) = _open(tmp_path, 1, "first")
    assert str(folder.rank_dir / "report.json") in write_report(tmp_path, "first", {"of": "first"}, folder.rank_dir)
    assert (tmp_path / "report.json").read_text() == "the user's"
    (tmp_path / "report.json").unlink()
    write_report(tmp_path, "first", {"of": "first"}, folder.rank_dir)
    _open(tmp_path, 1, "second")
    write_report(tmp_path, "first", {"of": "first, late"}, folder.rank_dir)
    assert not (tmp_path / "report.json").exists()
    assert json.loads((tmp_path / "previous" / "first" / "report.json").read_text()) == {"of": "first"}


def test_a_models_files_are_moved_aside(tmp_path: Path) -> None:
    """Also by a run that writes no such file: they are not of its result. The user's own file is refused."""
    for run, files in (("first", ["spec.json", "predictions.npz"]), ("second", ["spec.json"])):
        _open(tmp_path, 1, run, Use(files=files))
        assert not (tmp_path / "predictions.npz").exists()
        (tmp_path / "predictions.npz").touch()
    assert (tmp_path / "previous" / "first" / "predictions.npz").exists()
    with pytest.raises(InputError, match=r"predictions\.npz is there, and unilaunch did not make it"):
        OutputFolder(tmp_path, 0, 1, "third", Use(files=["spec.json", "predictions.npz"])).claim()


def test_checkpoints_are_moved_aside_unless_the_run_resumes(tmp_path: Path) -> None:
    """Those that a run made."""
    for run, resumes in (("first", False), ("second", True), ("third", False)):
        with _running(tmp_path, run, use=Use(resumes=resumes)) as (folder,):
            folder.open()
            assert folder.checkpoints.exists() == resumes
            (folder.make_checkpoints() / f"{run}.safetensors").touch()
    assert _names(tmp_path / "checkpoints") == ["third.safetensors"]
    assert _names(tmp_path / "previous" / "first" / "checkpoints") == ["first.safetensors", "second.safetensors"]


def test_checkpoints_of_the_user_are_refused(tmp_path: Path) -> None:
    """Before one of them is taken for old and removed."""
    (folder,) = _open(tmp_path, 1, "run")
    folder.checkpoints.mkdir()
    (folder.checkpoints / "epoch-000001.safetensors").touch()
    with pytest.raises(InputError, match=r"checkpoints is there, and unilaunch did not make it.*--checkpoint-dir"):
        folder.make_checkpoints("give --checkpoint-dir")


@pytest.mark.parametrize("end", [OutputFolder.let_go, lambda folder: claim.release(folder.root, "first")])
def test_a_run_waits_for_the_last_guards_of_the_one_before(
    end: Callable[[OutputFolder], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart must not trip over its own predecessor.

    A file server may hold the lock of a lost host for minutes: who has seen the job end releases its folder, and no
    other one.
    """
    monkeypatch.setattr(claim, "_PATIENCE", 20.0)
    (first,) = _open(tmp_path, 1, "first")
    first.claim()
    claim.release(tmp_path, "another")
    with ThreadPoolExecutor(1) as pool:
        second = OutputFolder(tmp_path, 0, 1, "second")
        claimed = pool.submit(second.claim)
        time.sleep(0.3)
        assert not claimed.done()
        end(first)
        claimed.result(timeout=60)
    first.let_go()
    second.let_go()


def test_a_file_system_without_locks_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before there were any."""

    def no_lock(descriptor: int, kind: int) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    for run in ("first", "second"):
        _open(tmp_path, 2, run)
    assert _names(tmp_path / "previous" / "first") == ["rank.0", "rank.1"]


def test_reports_from_other_hosts_follow_the_same_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier run's are moved, the user's own stay, and what cannot be kept is said in a line."""
    told = {rank: RankSeen(run="first", host="node1", value=rank) for rank in range(3)}
    keep_reports(tmp_path, 3, told)
    (tmp_path / "rank.1").rename(tmp_path / "kept")
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / "thesis").write_text("only copy")
    keep_reports(tmp_path, 3, {rank: replace(said, run="second") for rank, said in told.items()})
    assert (tmp_path / "rank.1" / "thesis").read_text() == "only copy"
    assert _names(tmp_path / "previous" / "first") == ["rank.0", "rank.2"]
    assert json.loads((tmp_path / "rank.2" / "value.json").read_text()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("unilaunch: the messages of rank 1 on node1 are not kept here: --output-dir ")
    (tmp_path / "result.json").write_text("the user's")
    keep_reports(tmp_path, 3, {0: RankSeen(run="third", host="node1", result={})})
    assert (tmp_path / "result.json").read_text() == "the user's"


@pytest.mark.system
@needs_root
@pytest.mark.parametrize("how", ["folder", "link"])
def test_another_users_folder_is_refused(how: str) -> None:
    """In it he could make a link to a file of this user; a link of his leads wherever he likes."""
    with TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        (top / "shared").mkdir()
        (top / "shared").chmod(0o1777)
        (top / "mine").mkdir()
        (top / "stderr").write_text("mine\n")
        plant = {"folder": "mkdir -p out/rank.0; ln -s ../../../stderr out/rank.0/stderr", "link": "ln -s ../mine out"}
        subprocess.run(["/bin/sh", "-c", plant[how]], cwd=top / "shared", user=NOBODY, check=True)
        output = OutputFolder(top / "shared" / "out", 0, 1, "run")
        words = rf"shared/out: it belongs to another user \(uid {NOBODY}\)"
        for step in (output.claim, output.open):
            with pytest.raises(InputError, match=words):
                step()
        assert (top / "stderr").read_text() == "mine\n"
        assert not list((top / "mine").iterdir())


@pytest.mark.system
@needs_root
def test_a_file_server_may_give_every_file_another_owner() -> None:
    """As NFS does with all_squash, and AWS EFS; two runs in one folder. A process's fsuid does the same here."""
    runs = (  # that user cannot read this user's modules
        "import ctypes, tempfile\nfrom pathlib import Path\nfrom unilaunch.folder.folder import OutputFolder, Use\n"
        f"ctypes.CDLL(None).setfsuid({NOBODY})\n"
        "for run in ('first', 'second'):\n"
        "    folder = OutputFolder(Path('volume/out'), 0, 1, run, Use(foreign=True))\n"
        "    folder.claim()\n    folder.open()\n    folder.let_go()\n"
    )
    with TemporaryDirectory() as top:
        Path(top, "volume").mkdir()
        Path(top).chmod(0o755)
        os.chown(Path(top, "volume"), NOBODY, NOBODY)
        subprocess.run([sys.executable, "-c", runs], cwd=top, check=True)
        out = Path(top, "volume", "out")
        assert out.stat().st_uid == NOBODY
        assert _names(out) == ["previous", "rank.0"]
        with pytest.raises(InputError, match="it belongs to another user"):
            OutputFolder(out, 0, 1, "third").claim()


@pytest.mark.system
@needs_root
def test_a_folder_that_rank_0_names_must_be_out_of_others_reach(tmp_path: Path) -> None:
    """Its owner is this user, but whose the folder above is could put another one in its place."""
    above = tmp_path / "above"
    above.mkdir()
    os.chown(above, NOBODY, NOBODY)
    folder = OutputFolder(above / "out", 0, 1, "run", Use(foreign=True))
    with pytest.raises(InputError, match=f"is in {above}, where other users can write"):
        folder.claim()
    _open(tmp_path / "out", 1, "run", Use(foreign=True))


@pytest.mark.parametrize("name", ["events.jsonl", "value.json", "stderr"])
def test_no_link_is_followed(name: str, tmp_path: Path) -> None:
    """In a rank's folder somebody of the group may have made one."""
    (folder,) = _open(tmp_path / "out", 1, "run")
    target = tmp_path / "target"
    target.write_text("mine\n")
    (folder.rank_dir / name).unlink(missing_ok=True)
    (folder.rank_dir / name).symlink_to(target)
    (folder.rank_dir / f".value.json.{os.getpid()}").symlink_to(target)
    folder.record(phase="train")
    folder.append_stderr("a line\n")
    folder.write_value(1)
    assert target.read_text() == "mine\n"


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A value that JSON cannot say leaves the earlier file."""
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    write_json(tmp_path / "a.json", {"a": "file\udce9 é"})  # a file's name that is no UTF-8
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": "file? é"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_nothing_is_lost_in_whatever_order_the_ranks_come(sizes: list[int], order: Random) -> None:
    """Several runs of several sizes: each rank's output of each run is there once, and the last run's is in place."""
    with TemporaryDirectory() as name:
        root, written = Path(name), set()
        for run, size in enumerate(sizes):
            folders = [OutputFolder(root, rank, size, f"run {run}") for rank in range(size)]
            order.shuffle(folders)
            for folder in folders:
                folder.claim()
            for folder in folders:
                folder.open()
                text = f"run {run} rank {folder.rank}"
                (folder.rank_dir / "stdout").write_text(text)
                written.add(text)
                if folder.rank == 0:
                    folder.write_result({"run": run})
            for folder in folders:
                folder.let_go()
        assert {path.read_text() for path in root.rglob("stdout")} == written
        assert len(list(root.rglob("stdout"))) == len(written)
        assert len(list(root.glob("rank.*"))) == sizes[-1]
        results = [json.loads(path.read_text())["run"] for path in root.rglob("result.json*")]
        assert sorted(results) == list(range(len(sizes)))


def test_a_folder_that_a_run_found_is_not_moved(tmp_path: Path) -> None:
    """It was somebody's output folder once; that makes what is in it nobody's but the user's."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "best.pt").write_text("weights")
    _open(checkpoints, 1, "evaluation")
    _open(tmp_path, 1, "training")
    assert (checkpoints / "best.pt").read_text() == "weights"


@pytest.mark.parametrize("text", ["", "[" * 60_000, '{"run": "r", "host": "h", "process": 1e999, "since": 0}'])
def test_a_broken_marker_is_in_nobodys_way(text: str, tmp_path: Path) -> None:
    """As a run leaves it that was killed as it began."""
    for folder in (tmp_path, tmp_path / "rank.0"):
        folder.mkdir(exist_ok=True)
        (folder / MARKER).write_text(text)
    assert _open(tmp_path, 1, "run")[0].rank_dir.joinpath("stdout").read_text() == "run, rank 0"


def test_a_file_that_the_user_names_may_be_a_link_or_a_pipe(tmp_path: Path) -> None:
    """`--output /dev/null` as root replaced the device by a file."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("one", "two"):
        write_users(tmp_path / "link", text)
        assert ((tmp_path / "link").is_symlink(), (tmp_path / "file").read_text()) == (True, text)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_users(tmp_path / "pipe", "three")
    assert (os.read(reader, 9), (tmp_path / "pipe").is_fifo()) == (b"three", True)
    os.close(reader)
    log = tmp_path / "log"  # a shell appends to it: its file must not be replaced
    code = "import pathlib, unilaunch.folder.files as files; files.write_users(pathlib.Path('/dev/stdout'), 'b')"
    subprocess.run(
        ["sh", "-c", f'printf a > {log}; "$0" -c "$1" >> {log}', sys.executable, code], check=True, timeout=60
    )
    assert log.read_text() == "ab"


def test_a_job_is_seen_on_a_file_system_that_locks_only_what_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS 4: an exclusive lock needs a file that is open to be written."""
    lock = fcntl.flock

    def flock(descriptor: int, kind: int) -> None:
        if kind & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = claim.claim(tmp_path, "run")
    assert isinstance(held, int)
    assert claim.is_held(tmp_path)
    os.close(held)
    assert not claim.is_held(tmp_path)
