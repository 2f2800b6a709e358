"""--precision bfloat16: the same accuracy on Cora, and the same numbers on both frameworks as far as they go."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, count_decayed, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part


@pytest.fixture(scope="module")
def cora_part() -> Part:
    """The whole graph as one part."""
    folder = Path(__file__).parents[2].parent / "shared" / "datasets"
    if not folder.is_dir():
        pytest.skip(f"no shared datasets: {folder}")
    graph = open_dataset("cora", folder, None, 0, normalize_features=True).load()
    return next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))


def _train(
    part: Part, make: Callable[..., Tensors], epochs: int, seed: int, **options: object
) -> tuple[list[float], float]:
    """Return the losses, and the share of right answers on the test nodes."""
    spec = GcnSpec.model_validate({"hidden": 16, **options})
    layers = plan_layers(spec, part.num_features, part.num_classes)
    config = NetworkConfig.of(spec, layers, seed)
    network = HostNetwork(host_problem(Alone(), 1, config, part, Meter()), make())
    adam = Adam(network.flat, network.flat * 0.0, 0.01, 5e-4, count_decayed(layers))
    losses = []
    for epoch in range(epochs):
        fused = network.gradient(epoch)
        losses.append(float(fused[0]))
        adam.step(fused[2:])
    return losses, float(network.evaluate()[2] / part.split_sizes[2])


@pytest.mark.system
def test_cora_is_as_accurate(cora_part: Part) -> None:
    """Within 0.3 points in the mean of two seeds; `benchmarks/accuracy.py` has ten."""
    means = [
        np.mean([_train(cora_part, TorchTensors, 200, seed, precision=precision)[1] for seed in range(2)])
        for precision in ("float32", "bfloat16")
    ]
    assert abs(means[1] - means[0]) <= 0.003


@pytest.mark.system
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_both_frameworks_round_alike(cora_part: Part, dropout: float) -> None:
    """The loss to a hundredth over 20 epochs; and it is not float32's."""
    options = {"dropout": dropout, "bias": True}
    torch_losses, mindspore_losses = (
        _train(cora_part, make, 20, 0, precision="bfloat16", **options)[0] for make in (TorchTensors, MindSporeTensors)
    )
    np.testing.assert_allclose(mindspore_losses, torch_losses, rtol=0, atol=0.01)
    assert torch_losses != _train(cora_part, TorchTensors, 20, 0, **options)[0]
