"""Training: equal shards, networks beside a gradient by hand, and every image counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import World
from unilaunch.rendezvous.alone import Alone
from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.loading import load_network
from unilaunch_mnist.mindspore_network import MindSporeNetwork
from unilaunch_mnist.network import Network, initial_weights, views
from unilaunch_mnist.preparation import Mnist
from unilaunch_mnist.sharding import normalise, shard
from unilaunch_mnist.spec import MnistSpec
from unilaunch_mnist.torch_network import TorchNetwork
from unilaunch_mnist.training import Training


@given(
    num_images=st.integers(1, 200), size=st.integers(1, 9), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 1000)
)
def test_shards_are_disjoint_and_cover(num_images: int, size: int, seed: int, epoch: int) -> None:
    """Every image once, and in one order for any number of ranks; a round is completed with the first images alone."""
    shards = [shard(num_images, rank, size, seed, epoch) for rank in range(size)]
    assert {len(own) for own in shards} == {-(-num_images // size)}
    dealt = np.stack(shards, axis=1).ravel()
    np.testing.assert_array_equal(dealt[:num_images], shard(num_images, 0, 1, seed, epoch))
    assert sorted(dealt[:num_images]) == list(range(num_images))
    again = dealt[num_images:]
    assert len(again) < size
    np.testing.assert_array_equal(again, np.resize(dealt[:num_images], len(again)))


def test_every_epoch_and_seed_shuffles_anew() -> None:
    """And the same ones shuffle alike."""
    orders = {tuple(shard(50, 0, 1, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert tuple(shard(50, 0, 1, 2, 2)) in orders


def _torch_device(weights: Floats) -> Network:
    network = TorchNetwork(weights, "cpu")
    network.on_host, network.flat = False, torch.from_numpy(weights)
    return network


NETWORKS: dict[str, Callable[[Floats], Network]] = {
    "torch": lambda weights: TorchNetwork(weights, "cpu"),
    "torch, device": _torch_device,
    "mindspore": lambda weights: MindSporeNetwork(weights, on_host=True),
    "mindspore, device": lambda weights: MindSporeNetwork(weights, on_host=False),
}


def _batch(count: int) -> tuple[Floats, Labels]:
    draw = np.random.default_rng(count)
    return draw.standard_normal((count, 784)).astype(np.float32), draw.integers(0, 10, count)


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


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [1, 2, 32])
def test_steps_are_those_by_hand(name: str, count: int) -> None:
    """Loss, gradient and weights over three steps, and the answers after them."""
    images, labels = _batch(count)
    expected = initial_weights(4)
    network = NETWORKS[name](initial_weights(4))
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
    np.testing.assert_array_equal(initial_weights(1), initial_weights(1))
    assert (initial_weights(1) != initial_weights(2)).any()


def test_the_network_belongs_to_the_backend() -> None:
    """And what no backend has is refused."""
    placement = Placement("cpu", 0, 1)
    assert isinstance(load_network("torch", placement, 0), TorchNetwork)
    assert isinstance(load_network("mindspore", placement, 0), MindSporeNetwork)
    with pytest.raises(SpecError, match=r"--backend mindspore --device cuda: the model mnist runs on torch"):
        load_network("mindspore", Placement("cuda", 0, 1), 0)


class _Right(Network):
    """A network that is always right."""

    @override
    def gradient(self, images: Floats, labels: Labels) -> Any:
        raise NotImplementedError

    @override
    def count_right(self, images: Floats, labels: Labels) -> int:
        assert len(images) == len(labels)
        return len(labels)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2000])
def test_every_test_image_counts(count: int, tmp_path: Path) -> None:
    """Also those of the last block, whole or not."""
    world = World(0, 1, 0, 1, 0, 1, "here", "none")
    session = Session(world, Placement("cpu", 0, 1), Alone(), OutputFolder(tmp_path, 0, 1, "run"), Log(), seed=0)
    images, labels = np.zeros((count, 784), np.uint8), np.zeros(count, np.int64)
    training = Training(MnistSpec(), session, Alone(), _Right(), Mnist(images, labels, images, labels, count))
    training._test()
    assert training.accuracies == [1.0]
