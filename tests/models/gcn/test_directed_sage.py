"""`--conv sage` on a directed graph with loops, duplicates and nodes without edges: PyG's SAGEConv, on any parts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import SAGEConv

from models.graph.torch_parts import make_whole
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError, SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.options import refuse_directed, refuse_options, refuse_untrainable, takes_edges_as_given
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, slice_nodes, split_parts
from unilaunch_graph.partition.part import Part

WHOLE = make_whole()
WEIGHTED = replace(WHOLE.graph, edge_arrays={})
GRAPH = replace(WEIGHTED, weights=None)
#: Widths for which the product comes first, the aggregation comes first, and it is made once.
SHAPES: dict[str, dict[str, Any]] = {
    "product first": {"hidden": 4},
    "aggregation first": {"hidden": 20, "layers": 3, "bias": True},
    "aggregated once": {"hidden": 4, "dropout": 0, "layers": 3, "layer_norm": True, "residual": True},
}


def _config(**options: Any) -> NetworkConfig:
    spec = GcnSpec.model_validate({"conv": "sage", "precision": "float64", **options})
    return NetworkConfig.of(spec, plan_layers(spec, 8, 3), 2)


def _parts(graph: Graph, owner: Any) -> list[Part]:
    owner = np.asarray(owner, np.int64)
    return list(split_parts(graph, order_nodes(graph.structure(), owner, int(owner.max()) + 1)))


def _network(config: NetworkConfig, part: Part, tensors: Tensors, collectives: Any = None) -> HostNetwork:
    return HostNetwork(training_problem(collectives or Alone(), 1, config, part, Meter()), tensors)


@pytest.mark.parametrize("tensors", [TorchTensors, MindSporeTensors])
@pytest.mark.parametrize("hidden", [4, 20])
def test_it_is_pygs_network(tensors: Callable[[], Tensors], hidden: int) -> None:
    """Three layers with the same weights: scores, loss and every gradient to 1e-12."""
    config = _config(hidden=hidden, layers=3, bias=True, dropout=0)
    (part,) = _parts(GRAPH, np.zeros(40))
    network, order = _network(config, part, tensors()), torch.from_numpy(np.array(part.owned))
    weights = [torch.from_numpy(array).requires_grad_() for array in network.weights()]
    x, given = WHOLE.x, iter(weights)
    for layer in config.layers:
        conv = SAGEConv(layer.width_in, layer.width_out).double()
        own = {"lin_l.weight": next(given).T, "lin_r.weight": next(given).T, "lin_l.bias": next(given)}
        x = torch.func.functional_call(conv, own, (x, WHOLE.edge_index))
        x = x if layer.is_last else x.relu()
    loss = torch.nn.functional.cross_entropy(x[WHOLE.train_mask], WHOLE.y[WHOLE.train_mask])
    gradients = torch.autograd.grad(loss, weights)
    np.testing.assert_allclose(network.logits(), x.detach()[order], rtol=0, atol=1e-12)
    expected = np.concatenate([[loss.item(), 0], *(gradient.numpy().ravel() for gradient in gradients)])
    np.testing.assert_allclose(network.gradient(0), expected, rtol=0, atol=1e-12)


OWNERS: dict[str, Any] = {
    "two": np.arange(40) % 2,
    "three, one without edges": np.where(np.arange(40) < 35, np.arange(40) % 2 * 2, 1),
    "four, one empty": np.arange(40) % 3 + (np.arange(40) % 3 > 1),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("graph", [GRAPH, WEIGHTED], ids=["", "weighted"])
def test_gradients_do_not_depend_on_the_parts(graph: Graph, shape: str) -> None:
    """Nodes or columns divided, with dropout: gradient and evaluation to 1e-12; bytes as the layers say."""
    config = _config(**SHAPES[shape])

    def train(parts: list[Part]) -> tuple[Any, Any]:
        def work(rank: int, collectives: Any) -> tuple[Any, Any, int]:
            meter = Meter()
            network = HostNetwork(training_problem(collectives, 1, config, parts[rank], meter), TorchTensors())
            meter.read()
            gradient, moved = network.gradient(3), meter.read()[1]
            counts = network.evaluate()
            for buffer in (gradient, counts):
                collectives.all_reduce(buffer)
            return gradient, counts, moved

        results = on_every_rank(len(parts), work)
        assert all(np.array_equal(one[0], results[0][0]) for one in results)
        if not parts[0].adjacency:
            columns = sum(layer.exchanges * layer.width for layer in config.layers)
            assert sum(one[2] for one in results) == 8 * columns * sum(part.num_halo for part in parts)
        return results[0][:2]

    gradient, counts = train(_parts(graph, np.zeros(40)))
    adjacency, slices = slice_nodes(graph, 3)
    by_columns = [replace(part, adjacency=adjacency) for part in slices]
    for parts in (*(_parts(graph, owner) for owner in OWNERS.values()), by_columns):
        other, others = train(parts)
        np.testing.assert_allclose(other, gradient, rtol=0, atol=1e-12)
        np.testing.assert_allclose(others, counts, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"conv": "gcn"}, False),
        ({"conv": "sage"}, True),
        ({"conv": "gat"}, True),
        ({"conv": "sage", "edges": "symmetric"}, False),
        ({"conv": "sage", "use_gdc": True}, False),
    ],
)
def test_which_layers_take_edges_as_they_are_given(options: dict[str, Any], expected: bool) -> None:  # noqa: FBT001
    spec = GcnSpec(**options)
    refuse_options(spec)
    assert takes_edges_as_given(spec) == expected


@pytest.mark.parametrize(("options", "words"), [
    ({"conv": "gcn"}, "--edges given --conv gcn: A_hat needs a symmetric graph; expected --edges symmetric"),
    ({"conv": "sage", "use_gdc": True}, "--edges given --use-gdc: diffusion needs a symmetric graph"),
])  # fmt: skip
def test_edges_as_given_are_refused_where_a_symmetric_graph_is_needed(options: dict[str, Any], words: str) -> None:
    """By the options; and a directed part by the device, which needs the halo both ways."""
    with pytest.raises(SpecError, match=words):
        refuse_options(GcnSpec(edges="given", **options))
    with pytest.raises(SpecError, match=r"--conv sage --device cuda: the edges are directed, .*--device cpu"):
        refuse_directed(_parts(GRAPH, np.zeros(40))[0], "sage", "cuda")
    refuse_directed(_parts(GRAPH.symmetrised()[0], np.zeros(40))[0], "sage", "cuda")


@pytest.mark.parametrize("is_directed", [False, True])
def test_a_negative_weight_has_no_mean(is_directed: bool) -> None:  # noqa: FBT001
    """Of the graph, of the part that has it, and of parts of columns; it was used where edges had both directions."""
    given = replace(WEIGHTED if is_directed else WEIGHTED.symmetrised()[0], is_directed=is_directed)
    assert given.weights is not None
    graph = replace(given, weights=given.weights - 2 * (np.arange(len(given.weights)) == 3))
    adjacency, slices = slice_nodes(graph, 3)
    parts = [*_parts(graph, np.arange(40) % 2), *(replace(part, adjacency=adjacency) for part in slices)]
    every: list[Graph | Part] = [graph, *parts]
    for whole_or_part in every:
        if whole_or_part.least_weight < 0:
            with pytest.raises(
                InputError, match=r"sbm: an edge has the weight -.*: the mean over the neighbours needs"
            ):
                refuse_untrainable(GcnSpec(conv="sage"), whole_or_part, "cpu")
        refuse_untrainable(GcnSpec(conv="gat"), whole_or_part, "cpu")
    assert [part.least_weight < 0 for part in parts].count(True) == 1 + 3
