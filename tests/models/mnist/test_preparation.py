"""The files are found in the tutorial's folders and in ours; one line names a file that is missing or does not fit."""

import struct
from pathlib import Path

import numpy as np
import pytest

from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import RefusedTogetherError
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import World
from unilaunch_mnist.preparation import Mnist, prepare_data, read_split
from unilaunch_mnist.spec import MnistSpec


def _write(train: Path, test: Path) -> None:
    """Write 23 training images into one folder and 11 test images into another, in MNIST's format."""
    draw = np.random.default_rng(0)
    for folder, prefix, count in ((train, "train", 23), (test, "t10k", 11)):
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, count * 784).astype(np.uint8).tobytes()
        labels = draw.integers(0, 10, count).astype(np.uint8).tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + pixels)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)


@pytest.mark.parametrize(
    ("train", "test", "data_dir"),
    [
        ("data", "data", "data"),
        ("data/mnist", "data/mnist", "data"),
        ("data/train", "data/test", "data"),
        ("data/train", "data/test", "data/train"),
    ],
    ids=["flat", "mnist/", "train/ and test/", "the tutorial's DATA_PATH"],
)
def test_layouts(train: str, test: str, data_dir: str, tmp_path: Path) -> None:
    """Each layout gives all images."""
    _write(tmp_path / train, tmp_path / test)
    assert [array.shape for array in read_split(tmp_path / data_dir, "train")] == [(23, 784), (23,)]
    assert [array.shape for array in read_split(tmp_path / data_dir, "test")] == [(11, 784), (11,)]


def _prepare(folders: list[Path], output: Path) -> list[Mnist | str]:
    """Return what each rank gets from its own data folder, or its refusal."""
    size = len(folders)

    def prepare(rank: int, peers: RankInTurn) -> Mnist | str:
        world = World(rank, size, rank, size, 0, 1, f"host{rank}", "threads")
        folder = OutputFolder(output, rank, size, "test")
        folder.rank_dir.mkdir(parents=True)
        log = Log(level="CRITICAL")
        session = Session(world, Placement("cpu", 0, 1), peers, folder, log, seed=0)
        try:
            return prepare_data(MnistSpec(data_dir=folders[rank]), session)
        except RefusedTogetherError as refused:
            return str(refused)

    return in_turns(size, prepare)


def test_each_rank_tests_its_own_images(tmp_path: Path) -> None:
    """Disjoint, and together all of them; the training images are whole on each rank."""
    _write(tmp_path, tmp_path)
    images, labels = read_split(tmp_path, "test")
    ranks = _prepare([tmp_path] * 3, tmp_path / "out")
    for rank, data in enumerate(ranks):
        assert isinstance(data, Mnist)
        np.testing.assert_array_equal(data.test_images, images[rank::3])
        np.testing.assert_array_equal(data.test_labels, labels[rank::3])
        assert (len(data.images), data.num_test) == (23, 11)


def _refusal(folders: list[Path], output: Path) -> str:
    """Return what all ranks are refused with."""
    first, *others = _prepare(folders, output)
    assert isinstance(first, str)
    assert others == [first] * len(others)
    assert "\n" not in first
    return first


def test_ranks_with_other_files_are_refused_together(tmp_path: Path) -> None:
    """One changed pixel on one host is enough; the line names that host."""
    for folder in ("a", "b"):
        _write(tmp_path / folder, tmp_path / folder)
    path = tmp_path / "b" / "train-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[99] ^= 1
    path.write_bytes(content)
    refusal = _refusal([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert f"{tmp_path / 'b'} on host1: expected the files that rank 0 has" in refusal


def test_a_missing_file_is_refused_by_every_rank(tmp_path: Path) -> None:
    """Also by those that have it, with its name, every place, and where to get it."""
    _write(tmp_path / "a", tmp_path / "a")
    refusal = _refusal([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    for words in (": no train-images-idx3-ubyte", "-ubyte.gz", f"{tmp_path}/b/mnist", "--data-dir"):
        assert words in refusal
