"""MNIST: files in the tutorial's folders are read exactly or refused by name, in equal shards; the network is its."""

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from threaded_ranks import RankInTurn, in_turns
from unilaunch.errors import InputError, RefusedTogetherError
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import World
from unilaunch.rendezvous.alone import Alone
from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.idx import read_images, read_labels
from unilaunch_mnist.mindspore_network import MindSporeNetwork
from unilaunch_mnist.network import initial_weights, views
from unilaunch_mnist.preparation import Mnist, prepare_data, read_split
from unilaunch_mnist.sharding import normalise, shard
from unilaunch_mnist.spec import MnistSpec
from unilaunch_mnist.torch_network import TorchNetwork
from unilaunch_mnist.training import Training

PIXELS = (np.arange(3 * 784) % 256).astype(np.uint8)
IMAGES = struct.pack(">4I", 2051, 3, 28, 28) + PIXELS.tobytes()
LABELS = struct.pack(">2I", 2049, 5) + bytes([7, 0, 9, 1, 1])
PACKED = gzip.compress(IMAGES, mtime=0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_good_files(pack: type[bytes], tmp_path: Path) -> None:
    """Whatever the name says: an unpacked file that is still called .gz is one too."""
    (tmp_path / "images.gz").write_bytes(pack(IMAGES))
    (tmp_path / "labels").write_bytes(pack(LABELS))
    images, labels = read_images(tmp_path / "images.gz"), read_labels(tmp_path / "labels")
    np.testing.assert_array_equal(images, PIXELS.reshape(3, 784))
    assert (images.dtype.name, labels.dtype.name, labels.tolist()) == ("uint8", "int64", [7, 0, 9, 1, 1])


@pytest.mark.parametrize(("read", "content", "words"), [
    (read_images, b"", "found nothing"),
    (read_images, LABELS, "begins with 00 00 08 03, found 00 00 08 01"),
    (read_images, struct.pack(">4I", 2051, 3, 32, 32) + bytes(3 * 1024), "images of 28 x 28, found 32 x 32"),
    (read_images, struct.pack(">4I", 2051, 0, 28, 28), "says 0 of them"),
    (read_images, struct.pack(">4I", 2051, 2**32 - 1, 28, 28), "bytes for 4,294,967,295 images, found 16"),
    (read_images, IMAGES + b"\0", "2,368 bytes for 3 images, found 2,369"),
    (read_images, PACKED[:-8] + bytes(8), "whole gzip file.*fetch it again"),
    (read_labels, LABELS[:-1] + b"\x0a", "label 4: expected a class below 10"),
    *((read_images, PACKED[:length], "") for length in range(0, len(PACKED), 53)),
    *((read_images, IMAGES[:length], "") for length in range(0, len(IMAGES), 97)),
])  # fmt: skip
def test_damage_is_named(read: Callable[[Path], Any], content: bytes, words: str, tmp_path: Path) -> None:
    """Each kind has its line; no beginning of a file is a file."""
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(InputError, match=rf"file\.gz: (?=.*expected).*{words}"):
        read(tmp_path / "file.gz")


def _write(train: Path, test: Path) -> None:
    """Write 23 training images into one folder and 11 test images into another, in MNIST's format."""
    draw = np.random.default_rng(0)
    for folder, prefix, count in ((train, "train", 23), (test, "t10k", 11)):
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, count * 784).astype(np.uint8).tobytes()
        labels = draw.integers(0, 10, count).astype(np.uint8).tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + pixels)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)


@pytest.mark.parametrize(("train", "test", "data_dir"), [
    ("data", "data", "data"), ("data/mnist", "data/mnist", "data"), ("data/train", "data/test", "data"),
    ("data/train", "data/test", "data/train"),  # the tutorial's DATA_PATH
])  # fmt: skip
def test_each_layout_gives_all_images(train: str, test: str, data_dir: str, tmp_path: Path) -> None:
    _write(tmp_path / train, tmp_path / test)
    assert [array.shape for array in read_split(tmp_path / data_dir, "train")] == [(23, 784), (23,)]
    assert [array.shape for array in read_split(tmp_path / data_dir, "test")] == [(11, 784), (11,)]


def _prepare(*folders: Path) -> list[Mnist | str]:
    """Return what each rank gets from its own data folder, or its refusal."""
    size, output = len(folders), folders[-1] / "out"

    def prepare(rank: int, peers: RankInTurn) -> Mnist | str:
        folder = OutputFolder(output, rank, size, "test")
        folder.rank_dir.mkdir(parents=True)
        world = World(rank, size, rank, size, 0, 1, f"host{rank}", "threads")
        session = Session(world, Placement("cpu", 0, 1), peers, folder, Log(level="CRITICAL"), seed=0)
        try:
            return prepare_data(MnistSpec(data_dir=folders[rank]), session)
        except RefusedTogetherError as refused:
            return str(refused)

    return in_turns(size, prepare)


def test_each_rank_tests_its_own_images(tmp_path: Path) -> None:
    """Disjoint, and together all of them; the training images are whole on each rank."""
    _write(tmp_path, tmp_path)
    images, labels = read_split(tmp_path, "test")
    for rank, data in enumerate(_prepare(tmp_path, tmp_path, tmp_path)):
        assert isinstance(data, Mnist)
        np.testing.assert_array_equal(data.test_images, images[rank::3])
        np.testing.assert_array_equal(data.test_labels, labels[rank::3])
        assert (len(data.images), data.num_test) == (23, 11)


def test_ranks_with_other_files_are_refused_together(tmp_path: Path) -> None:
    """One changed pixel on one host is enough, or no file: one line for all ranks names that host, and every place."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders[:2]:
        _write(folder, folder)
    path = folders[1] / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    for other, words in ((1, "/b on host1: expected the files that rank 0 has"), (2, "/c/mnist.*--data-dir")):
        first, second = _prepare(folders[0], folders[other])
        assert isinstance(first, str)
        assert first == second
        assert re.fullmatch(f".*{words}.*", first)


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_shards_are_disjoint_and_cover(num_images: int, size: int, seed: int, epoch: int) -> None:
    """Every image once, and in one order for any number of ranks; a round is completed with the first images alone."""
    shards = [shard(num_images, rank, size, seed, epoch) for rank in range(size)]
    assert {len(own) for own in shards} == {-(-num_images // size)}
    dealt = np.stack(shards, axis=1).ravel()
    np.testing.assert_array_equal(dealt[:num_images], shard(num_images, 0, 1, seed, epoch))
    assert sorted(dealt[:num_images]) == list(range(num_images))
    np.testing.assert_array_equal(dealt, np.resize(dealt[:num_images], len(dealt)))


def test_every_epoch_and_seed_shuffles_anew() -> None:
    """And the same ones shuffle alike."""
    orders = {tuple(shard(50, 0, 1, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert tuple(shard(50, 0, 1, 2, 2)) in orders


def _torch_network(weights: Floats, *, on_host: bool) -> TorchNetwork:
    network = TorchNetwork(weights, "cpu")
    if not on_host:
        network.on_host, network.flat = False, torch.from_numpy(weights)
    return network


def by_hand(flat: Floats, images: Floats, labels: Labels) -> NDArray[np.float64]:
    """Return the loss and its gradient in float64. (7851,)"""
    matrix, bias = views(flat.astype(np.float64))
    dense = images.astype(np.float64) @ matrix + bias
    exponents = np.exp(np.maximum(dense, 0))
    softmax = exponents / exponents.sum(axis=1, keepdims=True)
    own = np.arange(len(labels))
    loss = -np.log(softmax[own, labels]).mean()
    softmax[own, labels] -= 1
    slope = softmax / len(labels) * (dense > 0)
    return np.concatenate([[loss], (images.T.astype(np.float64) @ slope).ravel(), slope.sum(axis=0)])


@pytest.mark.parametrize("make", [_torch_network, MindSporeNetwork])
@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("count", [1, 2, 32])
def test_steps_are_those_by_hand(make: Any, count: int, *, on_host: bool) -> None:
    """Loss, gradient and weights over three steps, and the answers after them."""
    draw = np.random.default_rng(count)
    images, labels = draw.standard_normal((count, 784)).astype(np.float32), draw.integers(0, 10, count)
    expected, network = initial_weights(4), make(initial_weights(4), on_host=on_host)
    for _ in range(3):
        fused = network.local(network.gradient(images, labels))
        np.testing.assert_allclose(np.asarray(fused), by_hand(expected, images, labels), rtol=0, atol=2e-6)
        network.flat -= 0.01 * fused[1:]
        expected -= (0.01 * by_hand(expected, images, labels)[1:]).astype(np.float32)
    np.testing.assert_allclose(np.asarray(network.flat), expected, rtol=0, atol=1e-6)
    matrix, bias = views(expected)
    answers = np.maximum(images @ matrix + bias, 0).argmax(axis=1)
    assert network.count_right(images, labels) == (answers == labels).sum()


def test_pixels_and_first_weights_are_the_tutorials() -> None:
    """Rescale by 1/255, then Normalize; normal with deviation 0.01, and a bias of zeros; the seed decides."""
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
    np.testing.assert_allclose(normalise(pixels), (pixels / 255.0 - 0.1307) / 0.3081, rtol=0, atol=1e-6)
    matrix, bias = views(initial_weights(1))
    assert matrix.dtype == normalise(pixels).dtype == np.float32
    assert (abs(matrix.mean()) < 5e-4, abs(matrix.std() - 0.01) < 2e-4, bias.any()) == (True, True, False)
    same = [np.array_equal(initial_weights(1), initial_weights(seed)) for seed in (1, 2)]
    assert same == [True, False]


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2000])
def test_every_test_image_counts(count: int, tmp_path: Path) -> None:
    """Also those of the last block, whole or not. A network of zeros says class 0."""
    world = World(0, 1, 0, 1, 0, 1, "here", "none")
    session = Session(world, Placement("cpu", 0, 1), Alone(), OutputFolder(tmp_path, 0, 1, "run"), Log(), seed=0)
    images, labels = np.zeros((count, 784), np.uint8), np.zeros(count, np.int64)
    network = TorchNetwork(np.zeros(7850, np.float32), "cpu")
    training = Training(MnistSpec(), session, Alone(), network, Mnist(images, labels, images, labels, count))
    training._test()
    assert training.accuracies == [1.0]
