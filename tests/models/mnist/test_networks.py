"""Both networks beside a gradient by hand, on the host path and on the device path (on cpu tensors)."""

from collections.abc import Callable

import mindspore as ms
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unilaunch.errors import SpecError
from unilaunch.interfaces.backend import Placement
from unilaunch_mnist.arrays import Floats, Labels
from unilaunch_mnist.loading import load_network
from unilaunch_mnist.mindspore_network import MindSporeNetwork
from unilaunch_mnist.network import Network, initial_weights, views
from unilaunch_mnist.torch_network import TorchNetwork


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


@pytest.mark.parametrize("name", NETWORKS)
def test_a_summed_buffer_is_of_its_kind(name: str) -> None:
    """On cpu a host array that may be written to, for MPI; on a device the framework's tensor, for its collectives."""
    network = NETWORKS[name](initial_weights(0))
    fused = network.gradient(*_batch(5))
    assert fused.shape == (7851,)
    if "device" in name:
        assert isinstance(fused, torch.Tensor if "torch" in name else ms.Tensor)
        return
    assert isinstance(fused, np.ndarray)
    assert fused.dtype == np.float32
    doubled = 2 * fused
    fused += fused.copy()
    np.testing.assert_array_equal(fused, doubled)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_of_the_ranks_is_the_global_batch(name: str) -> None:
    """Two ranks' batches of 16 give, summed and halved, the gradient of the batch of 32."""
    images, labels = _batch(32)
    network = NETWORKS[name](initial_weights(0))
    whole, *halves = (
        np.array(network.local(network.gradient(images[own], labels[own])))
        for own in (slice(None), slice(0, None, 2), slice(1, None, 2))
    )
    np.testing.assert_allclose(sum(halves) / 2, whole, rtol=0, atol=1e-6)


def test_initial_weights_are_the_tutorials() -> None:
    """Normal with deviation 0.01, and a bias of zeros; the seed decides."""
    matrix, bias = views(initial_weights(1))
    assert matrix.dtype == np.float32
    assert abs(matrix.mean()) < 5e-4
    assert abs(matrix.std() - 0.01) < 2e-4
    assert not bias.any()
    np.testing.assert_array_equal(initial_weights(1), initial_weights(1))
    assert (initial_weights(1) != initial_weights(2)).any()


def test_the_network_belongs_to_the_backend() -> None:
    """And what no backend has is refused."""
    placement = Placement("cpu", 0, 1)
    assert isinstance(load_network("torch", placement, 0), TorchNetwork)
    assert isinstance(load_network("mindspore", placement, 0), MindSporeNetwork)
    with pytest.raises(SpecError, match=r"--backend mindspore --device cuda: the model mnist runs on torch"):
        load_network("mindspore", Placement("cuda", 0, 1), 0)
