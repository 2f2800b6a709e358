"""The output folder: names, and an earlier run's output that is never lost."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unilaunch.errors import InputError
from unilaunch.output.folder import OutputFolder, write_json


def _open(root: Path, size: int, run_id: str) -> list[OutputFolder]:
    folders = [OutputFolder(root, rank, size, run_id) for rank in range(size)]
    for folder in reversed(folders):
        folder.open()
        folder.stdout.write_text(f"{run_id}, rank {folder.rank}")
    return folders


@pytest.mark.parametrize(("size", "name"), [(8, "rank.7"), (12, "rank.07"), (101, "rank.007")])
def test_ranks_are_padded_as_open_mpi_pads_them(size: int, name: str, tmp_path: Path) -> None:
    """So that a listing is in their order."""
    assert OutputFolder(tmp_path, 7, size, "run").rank_dir.name == name


def test_earlier_runs_are_moved_aside_whole(tmp_path: Path) -> None:
    """Three runs, the first with more ranks: everything of each is still there."""
    _open(tmp_path, 3, "first")[0].write_result({"run": 1})
    _open(tmp_path, 2, "second")[0].write_result({"run": 2})
    _open(tmp_path, 2, "third")
    for run, ranks in (("first", 3), ("second", 2)):
        earlier = tmp_path / "previous" / run
        assert [(earlier / f"rank.{r}" / "stdout").read_text() for r in range(ranks)] == [
            f"{run}, rank {r}" for r in range(ranks)
        ]
        assert (earlier / "result.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["previous", "rank.0", "rank.1"]


def test_the_same_run_twice_keeps_both(tmp_path: Path) -> None:
    """Open MPI 4 can give two runs one name."""
    for _ in range(3):
        _open(tmp_path, 1, "same")
    assert sorted(path.name for path in (tmp_path / "previous" / "same").iterdir()) == ["rank.0", "rank.0~2"]


def test_a_strangers_folder_is_kept_too(tmp_path: Path) -> None:
    """A rank.0 without events is moved, not judged."""
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "thesis").write_text("only copy")
    _open(tmp_path, 1, "run")
    assert (tmp_path / "previous" / "unknown" / "rank.0" / "thesis").read_text() == "only copy"


def test_a_folder_that_cannot_be_written_is_named() -> None:
    """With the option and the reason."""
    with pytest.raises(InputError, match="--output-dir /proc/none: rank 0 cannot write there"):
        OutputFolder(Path("/proc/none"), 0, 1, "run").open()


def test_events_are_one_line_each(tmp_path: Path) -> None:
    """The first names the run."""
    (folder,) = _open(tmp_path, 1, "run")
    folder.record(phase="train", note="two\nlines")
    events = [json.loads(line) for line in (folder.rank_dir / "events.jsonl").read_text().splitlines()]
    assert [sorted(set(event) - {"time"}) for event in events] == [["run"], ["note", "phase"]]


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A value that JSON cannot say leaves the earlier file."""
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
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
                folder.open()
                text = f"run {run} rank {folder.rank}"
                folder.stdout.write_text(text)
                written.add(text)
                if folder.rank == 0:
                    folder.write_result({"run": run})
        assert {path.read_text() for path in root.rglob("stdout")} == written
        assert len(list(root.rglob("stdout"))) == len(written)
        assert len(list(root.glob("rank.*"))) == sizes[-1]
        results = [json.loads(path.read_text())["run"] for path in root.rglob("result.json*")]
        assert sorted(results) == list(range(len(sizes)))


def test_ranks_that_come_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each in its own thread, over a run that had more ranks."""
    _open(tmp_path, 12, "first")
    folders = [OutputFolder(tmp_path, rank, 4, "second") for rank in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(OutputFolder.open, folders))
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == [f"rank.{rank}" for rank in range(4)]
    assert len(list((tmp_path / "previous" / "first").glob("rank.*"))) == 12
