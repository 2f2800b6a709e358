"""`--conv sage` and `--conv gat` on a directed graph with loops, duplicates and nodes without edges: PyG's networks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv, SAGEConv

from graphs_by_hand import parts_of
from models.graph.torch_parts import make_whole
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError, RefusedTogetherError, SpecError
from unilaunch.interfaces.backend import Placement
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import Layer, NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.options import refuse_options, refuse_untrainable, takes_edges_as_given
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
#: Of sage: the product comes first, the aggregation comes first, and it is made once.
SHAPES: dict[str, dict[str, Any]] = {
    "sage, product first": {"hidden": 4},
    "sage, aggregation first": {"hidden": 20, "layers": 3, "bias": True},
    "sage, aggregated once": {"hidden": 4, "dropout": 0, "layers": 3, "layer_norm": True, "residual": True},
    "gat": {"conv": "gat", "hidden": 3, "heads": 4, "dropout": 0.4},
    "gat, everything": {
        "conv": "gat", "hidden": 3, "heads": 2, "layers": 4, "bias": True, "layer_norm": True, "residual": True,
        "dropout": 0.4,
    },
}  # fmt: skip
OWNERS: dict[str, Any] = {
    "two": np.arange(40) % 2,
    "three, one without edges": np.where(np.arange(40) < 35, np.arange(40) % 2 * 2, 1),
    "four, one empty": np.arange(40) % 3 + (np.arange(40) % 3 > 1),
}


def _config(**options: Any) -> NetworkConfig:
    spec = GcnSpec.model_validate({"conv": "sage", "precision": "float64", **options})
    return NetworkConfig.of(spec, plan_layers(spec, 8, 3), 2)


def _by_columns(graph: Graph) -> list[Part]:
    adjacency, slices = slice_nodes(graph, 3)
    return [replace(part, adjacency=adjacency) for part in slices]


def _network(config: NetworkConfig, part: Part, tensors: Tensors, meter: Meter, collectives: Any) -> HostNetwork:
    network = HostNetwork(training_problem(collectives, 1, config, part, meter), tensors)
    meter.read()
    return network


def _conv(layer: Layer, weights: Sequence[torch.Tensor]) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return PyG's layer, and the weights by its names."""
    first, second, third, *bias = weights
    if not layer.heads:
        own = {"lin_l.weight": first.T, "lin_r.weight": second.T, "lin_l.bias": third}
        return SAGEConv(layer.width_in, layer.width_out), own
    own = {"lin.weight": first.T, "att_src": second[None], "att_dst": third[None], "bias": bias[0]}
    return GATConv(layer.width_in, layer.width_out // layer.heads, layer.heads), own


@pytest.mark.parametrize("tensors", [TorchTensors(), MindSporeTensors()], ids=["torch", "mindspore"])
@pytest.mark.parametrize("options", [{"hidden": 4}, {"hidden": 20}, {"conv": "gat", "hidden": 4, "heads": 2}], ids=str)
def test_it_is_pygs_network(tensors: Tensors, options: dict[str, Any]) -> None:
    """Three layers with the same weights: scores, loss and every gradient to 1e-12."""
    config = _config(**options, layers=3, bias=True, dropout=0)
    (part,) = parts_of(GRAPH)
    network, order = _network(config, part, tensors, Meter(), Alone()), torch.from_numpy(np.array(part.owned))
    weights = [torch.from_numpy(array).requires_grad_() for array in network.weights()]
    x, activate = WHOLE.x, torch.nn.functional.elu if config.layers[0].heads else torch.relu
    for place, layer in enumerate(config.layers):
        count = len(layer.parameters)
        conv, own = _conv(layer, weights[place * count : (place + 1) * count])
        x = torch.func.functional_call(conv.double(), own, (x, WHOLE.edge_index))
        x = x if layer.is_last else activate(x)
    loss = torch.nn.functional.cross_entropy(x[WHOLE.train_mask], WHOLE.y[WHOLE.train_mask])
    gradients = torch.autograd.grad(loss, weights)
    np.testing.assert_allclose(network.logits(), x.detach()[order], rtol=0, atol=1e-12)
    expected = np.concatenate([[loss.item(), 0], *(gradient.numpy().ravel() for gradient in gradients)])
    np.testing.assert_allclose(network.gradient(0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "graph"),
    [*((shape, WEIGHTED) for shape in SHAPES), ("sage, product first", GRAPH), ("gat", GRAPH)],
    ids=[*SHAPES, "sage without weights", "gat without weights"],
)
def test_gradients_do_not_depend_on_the_parts(shape: str, graph: Graph) -> None:
    """Nodes or columns divided, with dropout: gradient and evaluation to 1e-11; bytes as the layers say."""
    config = _config(**SHAPES[shape])

    def train(parts: list[Part]) -> tuple[Any, Any]:
        def work(rank: int, collectives: Any) -> tuple[Any, Any, int]:
            meter = Meter()
            network = _network(config, parts[rank], TorchTensors(), meter, collectives)
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

    gradient, counts = train(parts_of(graph))
    by_columns = [] if config.layers[0].heads else [_by_columns(graph)]
    for parts in (*(parts_of(graph, owner) for owner in OWNERS.values()), *by_columns):
        other, others = train(parts)
        np.testing.assert_allclose(other, gradient, rtol=0, atol=1e-11)
        np.testing.assert_allclose(others, counts, rtol=0, atol=1e-11)


def test_all_frameworks_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch, MindSpore and a backend from outside: weights, gradient with dropout and scores to 1e-11."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "numpy_backend")
    from unilaunch_numpy.network import NumpyTensors

    config, (part,) = _config(**SHAPES["gat, everything"]), parts_of(GRAPH)
    expected = _network(config, part, TorchTensors(), Meter(), Alone())
    for tensors in (MindSporeTensors(), NumpyTensors(config)):
        network = _network(config, part, tensors, Meter(), Alone())
        np.testing.assert_array_equal(network.flat, expected.flat)
        np.testing.assert_allclose(network.gradient(3), expected.gradient(3), rtol=0, atol=1e-11)
        np.testing.assert_allclose(network.logits(), expected.logits(), rtol=0, atol=1e-11)


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
    """Where the user says nothing."""
    spec = GcnSpec(**options)
    refuse_options(spec)
    assert takes_edges_as_given(spec) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conv": "gcn", "edges": "given"}, "--edges given --conv gcn: A_hat needs a symmetric graph"),
        ({"use_gdc": True, "edges": "given"}, "--edges given --use-gdc: diffusion needs a symmetric graph"),
        *(
            ({"conv": "gat", **options}, r"^--[a-z-]+ ?\S* --conv gat: ")
            for options in ({"parallel": "tensor"}, {"parallel": "auto"}, {"precision": "bfloat16"}, {"use_gdc": True})
        ),
        ({"heads": 4}, "--heads 4 --conv sage: only --conv gat has heads"),
    ],
)
def test_options_that_a_layer_lacks_are_refused(options: dict[str, Any], words: str) -> None:
    """By name, before anything is read."""
    with pytest.raises(SpecError, match=words):
        GcnModel().check(GcnSpec(**{"conv": "sage"} | options), 1)


def test_a_device_refuses_attention_and_directed_edges() -> None:
    """Attention before a graph is looked for."""
    session: Any = SimpleNamespace(placement=Placement("cuda", 0, 1))
    with pytest.raises(RefusedTogetherError, match=r"^--conv gat --device cuda: [^\n]*--device cpu$"):
        GcnModel().prepare(GcnSpec(dataset="nowhere", conv="gat"), session)
    with pytest.raises(SpecError, match=r"--conv sage --device cuda: the edges are directed, .*--device cpu"):
        refuse_untrainable(GcnSpec(conv="sage"), parts_of(GRAPH)[0], "cuda")
    refuse_untrainable(GcnSpec(conv="sage"), parts_of(GRAPH.symmetrised()[0])[0], "cuda")


@pytest.mark.parametrize("is_directed", [False, True])
def test_a_negative_weight_has_no_mean(is_directed: bool) -> None:  # noqa: FBT001
    """Of the graph, of the part that has it, and of parts of columns; it was used where edges had both directions."""
    given = replace(WEIGHTED if is_directed else WEIGHTED.symmetrised()[0], is_directed=is_directed)
    assert given.weights is not None
    graph = replace(given, weights=given.weights - 2 * (np.arange(len(given.weights)) == 3))
    parts = [*parts_of(graph, OWNERS["two"]), *_by_columns(graph)]
    every: list[Graph | Part] = [graph, *parts]
    for whole_or_part in every:
        if whole_or_part.least_weight < 0:
            with pytest.raises(
                InputError, match=r"sbm: an edge has the weight -.*: the mean over the neighbours needs"
            ):
                refuse_untrainable(GcnSpec(conv="sage"), whole_or_part, "cpu")
        refuse_untrainable(GcnSpec(conv="gat"), whole_or_part, "cpu")
    assert [part.least_weight < 0 for part in parts].count(True) == 1 + 3
