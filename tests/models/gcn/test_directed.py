"""`--conv sage` and `--conv gat` on a directed graph with loops, duplicates and nodes without edges: PyG's networks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv, SAGEConv

from graphs_by_hand import parts_of
from models.graph.torch_parts import make_whole
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import Layer, NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.options import refuse_untrainable
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import slice_nodes
from unilaunch_graph.partition.part import Part

WHOLE = make_whole()
WEIGHTED = replace(WHOLE.graph, edge_arrays={})
GRAPH = replace(WEIGHTED, weights=None)
EVERYTHING: dict[str, Any] = {
    "conv": "gat", "hidden": 3, "heads": 2, "layers": 4, "dropout": 0.4, "bias": True, "layer_norm": True,
    "residual": True,
}  # fmt: skip
#: Two, three of which one is without edges, four of which one is empty.
OWNERS = (np.arange(40) % 2, np.where(np.arange(40) < 35, np.arange(40) % 2 * 2, 1), np.array([0, 1, 3] * 13 + [0]))


def _config(**options: Any) -> NetworkConfig:
    spec = GcnSpec.model_validate({"conv": "sage", "precision": "float64", **options})
    return NetworkConfig.of(spec, plan_layers(spec, 8, 3), 2)


def _by_columns(graph: Graph) -> list[Part]:
    adjacency, slices = slice_nodes(graph, 3)
    return [replace(part, adjacency=adjacency) for part in slices]


def _alone(config: NetworkConfig, tensors: Tensors) -> HostNetwork:
    return HostNetwork(training_problem(Alone(), 1, config, parts_of(GRAPH)[0], Meter()), tensors)


def _conv(layer: Layer, weights: Sequence[torch.Tensor]) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return PyG's layer, and the weights by its names."""
    if not layer.heads:
        own = {"lin_l.weight": weights[0].T, "lin_r.weight": weights[1].T, "lin_l.bias": weights[2]}
        return SAGEConv(layer.width_in, layer.width_out), own
    own = {"lin.weight": weights[0].T, "att_src": weights[1][None], "att_dst": weights[2][None], "bias": weights[3]}
    return GATConv(layer.width_in, layer.width_out // layer.heads, layer.heads), own


@pytest.mark.parametrize("tensors", [TorchTensors(), MindSporeTensors()], ids=["torch", "mindspore"])
@pytest.mark.parametrize("options", [{"hidden": 4}, {"hidden": 20}, {"conv": "gat", "hidden": 4, "heads": 2}], ids=str)
def test_it_is_pygs_network(tensors: Tensors, options: dict[str, Any]) -> None:
    """Three layers with the same weights: scores, loss and every gradient to 1e-12."""
    config = _config(**options, layers=3, bias=True, dropout=0)
    network = _alone(config, tensors)
    weights = [torch.from_numpy(array).requires_grad_() for array in network.weights()]
    x, activate = WHOLE.x, torch.nn.functional.elu if config.layers[0].heads else torch.relu
    for place, layer in enumerate(config.layers):
        count = len(layer.parameters)
        conv, own = _conv(layer, weights[place * count : (place + 1) * count])
        x = torch.func.functional_call(conv.double(), own, (x, WHOLE.edge_index))
        x = x if layer.is_last else activate(x)
    loss = torch.nn.functional.cross_entropy(x[WHOLE.train_mask], WHOLE.y[WHOLE.train_mask])
    gradients = torch.autograd.grad(loss, weights)
    np.testing.assert_allclose(network.logits(), x.detach()[parts_of(GRAPH)[0].owned], rtol=0, atol=1e-12)
    expected = np.concatenate([[loss.item(), 0], *(gradient.numpy().ravel() for gradient in gradients)])
    np.testing.assert_allclose(network.gradient(0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("options", "graph"), [
    ({"hidden": 4}, GRAPH),  # the product comes first
    ({"hidden": 4}, WEIGHTED),
    ({"hidden": 20, "layers": 3, "bias": True}, WEIGHTED),  # the aggregation comes first
    ({"hidden": 4, "dropout": 0, "layers": 3, "layer_norm": True, "residual": True}, WEIGHTED),  # it is made once
    ({"conv": "gat", "hidden": 3, "heads": 4, "dropout": 0.4}, GRAPH),
    (EVERYTHING, WEIGHTED),
])  # fmt: skip
def test_gradients_do_not_depend_on_the_parts(options: dict[str, Any], graph: Graph) -> None:
    """Nodes or columns divided, with dropout: gradient and evaluation to 1e-11; bytes as the layers say."""
    config = _config(**options)

    def train(parts: list[Part]) -> Any:
        def work(rank: int, collectives: Any) -> tuple[Any, int]:
            meter = Meter()
            network = HostNetwork(training_problem(collectives, 1, config, parts[rank], meter), TorchTensors())
            meter.read()
            gradient, moved = network.gradient(3), meter.read()[1]
            numbers = np.concatenate([gradient, network.evaluate()])
            collectives.all_reduce(numbers)
            return numbers, moved

        numbers, moved = zip(*on_every_rank(len(parts), work), strict=True)
        assert all(np.array_equal(one, numbers[0]) for one in numbers)
        if not parts[0].adjacency:
            columns = sum(layer.exchanges * layer.width for layer in config.layers)
            assert sum(moved) == 8 * columns * sum(part.num_halo for part in parts)
        return numbers[0]

    expected = train(parts_of(graph))
    by_columns = [] if config.layers[0].heads else [_by_columns(graph)]
    for parts in (*(parts_of(graph, owner) for owner in OWNERS), *by_columns):
        np.testing.assert_allclose(train(parts), expected, rtol=0, atol=1e-11)


def test_all_frameworks_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch, MindSpore and a backend from outside: weights, gradient with dropout and scores to 1e-11."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "numpy_backend")
    from unilaunch_numpy.network import NumpyTensors

    config = _config(**EVERYTHING)
    expected = _alone(config, TorchTensors())
    for tensors in (MindSporeTensors(), NumpyTensors(config)):
        network = _alone(config, tensors)
        np.testing.assert_array_equal(network.flat, expected.flat)
        np.testing.assert_allclose(network.gradient(3), expected.gradient(3), rtol=0, atol=1e-11)
        np.testing.assert_allclose(network.logits(), expected.logits(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("graph", [WEIGHTED.symmetrised()[0], WEIGHTED], ids=["symmetric", "directed"])
def test_a_negative_weight_has_no_mean(graph: Graph) -> None:
    """Of the graph, of the part that has it, and of parts of columns; it was used where edges had both directions."""
    assert graph.weights is not None
    graph = replace(graph, weights=graph.weights - 2 * (np.arange(len(graph.weights)) == 3))
    every: list[Graph | Part] = [graph, *parts_of(graph, OWNERS[0]), *_by_columns(graph)]
    for whole_or_part in every:
        refuse_untrainable(GcnSpec(conv="gat"), whole_or_part, "cpu")
        if whole_or_part.least_weight < 0:
            with pytest.raises(
                InputError, match=r"sbm: an edge has the weight -.*: the mean over the neighbours needs"
            ):
                refuse_untrainable(GcnSpec(conv="sage"), whole_or_part, "cpu")
    assert [whole_or_part.least_weight < 0 for whole_or_part in every].count(True) == 1 + 1 + 3
