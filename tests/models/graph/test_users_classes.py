"""Classes of a user's own, and PyG's functions in them: exact on parts, or refused in one line.

Left out: which edges `dropout_edge` draws (each rank draws for its own), and the classes of CuGraph, dgNN and pyg-lib,
which are made without their constructors.
"""

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric import utils
from torch_geometric.nn import ChebConv, LabelPropagation, MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from models.graph.layers_of_pyg import WIDTH, Case, Net, check_exact, weighted
from models.graph.torch_parts import PARTS, UNEVEN, WHOLE, each_part, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.refusals import CLASSES, FUNCTIONS

Function = Callable[..., Any]
pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings("ignore:'dropout_adj' is deprecated")]


@pytest.mark.parametrize("normalization", [None, "sym", "rw"])
def test_chebconv_takes_the_largest_number_of_all_ranks(normalization: str | None) -> None:
    """Without `lambda_max` it scales by the largest number in the Laplacian; one part has no edge, and one no node."""
    case = Case(lambda: ChebConv(WIDTH, 4, K=3, normalization=normalization), weighted)
    check_exact(case, UNEVEN, check=normalization == "sym")


class _Summing(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """Sums over the edges, and with the weights, that *change* makes of rows and edges."""

    def __init__(self, change: Function) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        edges, weight = self.change(x, edge_index)
        return self.propagate(edges, x=x, weight=torch.ones(edges.size(1)) if weight is None else weight)

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x_j * weight[:, None]


class _Stepping(MessagePassing):  # type: ignore[misc]
    """Attends with a softmax as PyG's own layers do, without types; its steps ask for the nodes' own rows and edges."""

    def __init__(self) -> None:
        super().__init__(node_dim=0)
        self.score = torch.nn.Linear(2 * WIDTH, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x, weight=self.edge_updater(edge_index, x=x))

    def edge_update(self, x_j: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (x_j * x[index]).sum(1)

    def message(self, x_i, x_j, weight, index, ptr, size_i) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return weight[:, None] * x_j * utils.softmax(self.score(torch.cat([x_i, x_j], 1)), index, ptr, size_i)

    def update(self, aggregated: torch.Tensor, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return aggregated + x / (1 + utils.degree(edge_index[0], x.size(0)))[:, None]


class _Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = gnn.GCNConv(WIDTH, WIDTH), torch.nn.Parameter(torch.ones(2))

    def encode(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.conv(x, edge_index) / (1 + utils.degree(edge_index[0], len(x)))[:, None]

    def reset_parameters(self, gain: float, *, bias: float = 0) -> None:
        torch.nn.init.constant_(self.weight, gain + bias)


def _corrected(model: Any, x: torch.Tensor, g: Any) -> Any:
    given = g.y[g.train_mask], g.train_mask, g.edge_index, g.edge_weight
    return x[:, :3] * model.smooth(model.correct(x[:, :3].softmax(1), *given), *given)


EXACT: dict[str, Case] = {
    "a method": Case(_Encoder, lambda model, x, g: model.encode(x, g.edge_index)),
    "a submodule": Case(_Encoder, lambda model, x, g: model.conv(x, g.edge_index)),
    "attention, steps that ask for edges and own rows": Case(_Stepping),
    "torch's no_grad": Case(lambda: LabelPropagation(2, 0.9), lambda spread, x, g: x * spread(x, g.edge_index)),
    "CorrectAndSmooth": Case(lambda: gnn.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False), _corrected),
}
CALLS: dict[str, Function] = {
    "degree": lambda x, e: (e, 1 / utils.degree(e[0], len(x))[e[0]]),
    "degrees in a list": lambda x, e: (e, torch.stack([utils.degree(end, len(x)) for end in e], 1).sum(1)[e[1]]),
    "a number times degrees": lambda x, e: (e, torch.mul(torch.tensor(2.0), other=utils.degree(e[0], len(x)))[e[0]]),
    "gcn_norm": lambda x, e: gcn_norm(e, num_nodes=len(x)),
    "get_laplacian": lambda x, e: utils.get_laplacian(e, None, "sym", None, len(x)),
    "ChebConv": lambda x, e: ChebConv.__norm__(ChebConv(WIDTH, WIDTH, 2), e, len(x), None, "rw"),
    "normalize_edge_index": lambda x, e: utils.normalize_edge_index(e, len(x)),
    "add_self_loops": lambda x, e: utils.add_self_loops(e, num_nodes=x.size(0)),
    "add_remaining_self_loops": lambda x, e: utils.add_remaining_self_loops(e, num_nodes=x.size(0)),
    "dropout_edge": lambda _, e: (utils.dropout_edge(e, training=False)[0], None),
    "dropout_adj": lambda _, e: utils.dropout_adj(e, training=False),
    "mask_feature": lambda x, e: (e, utils.mask_feature(x, training=False)[0][:, 0][e[1]]),
}


@pytest.mark.parametrize("name", [*EXACT, *CALLS])
def test_a_users_class_is_exact(name: str) -> None:
    """And PyG's, whose forward is no layer's. Each function of PyG's gives what it gives in one process."""
    check_exact(EXACT[name] if name in EXACT else Case(lambda: _Summing(CALLS[name])), check=name in EXACT)


def _sum_of(change: Function) -> Callable[[GraphPart], Any]:
    return lambda p: distribute(_Summing(change), p, check=False)(p.x, p.edge_index)


distributed: Function = distribute
OVER_ALL_NODES: dict[str, tuple[Callable[[GraphPart], Any], str]] = {
    "a method": (
        lambda p: distributed(gnn.models.RECT_L(8, 4), p).get_semantic_labels(p.x, p.y, p.train_mask),
        "RECT_L.get_semantic_labels: it takes means over this rank's nodes"),
    "a loss of edges": (
        lambda p: distributed(gnn.GAE(gnn.GCN(8, 8, 2)), p).recon_loss(p.x, p.edge_index), "GAE.recon_loss: it is"),
    "a largest degree": (
        _sum_of(lambda x, e: (e, utils.degree(e[0], len(x)).max() * x[e[1], 0])),
        r"degree\(...\).max\(\) is of this rank's"),
    "no number of nodes": (_sum_of(lambda _, e: (e, utils.degree(e[0])[e[1]])), "num_nodes is not given"),
    "another number of nodes": (_sum_of(lambda _, e: (e, utils.degree(e[0], 7)[e[1]])), "degree: num_nodes=7"),
    "dropout_edge": (_sum_of(lambda _, e: utils.dropout_edge(e, force_undirected=True)), "an edge and the one back"),
    "dropout_adj": (_sum_of(lambda _, e: utils.dropout_adj(e, force_undirected=True)), "an edge and the one back"),
}  # fmt: skip


@pytest.mark.parametrize("name", OVER_ALL_NODES)
@each_part()
def test_a_call_over_all_nodes_is_refused(part: GraphPart, name: str) -> None:
    """By name, on every rank: rank 0's numbers took the place of the others', or the ranks made unlike rows."""
    call, words = OVER_ALL_NODES[name]
    with pytest.raises(SpecError, match=words):
        call(part)


@each_part(2)
def test_a_function_is_refused(part: GraphPart) -> None:
    """In one line that names it; whoever calls it."""
    for function in FUNCTIONS:
        needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
        call = partial(function, *[part.x] * len(needed))
        with pytest.raises(SpecError, match=f"^{function.__qualname__}: "):
            _sum_of(lambda *_, call=call: call())(part)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_is_refused_and_what_is_derived_from_it(kind: type[torch.nn.Module]) -> None:
    """By its place in the model and its name; some classes cannot be made without a library."""
    part: Any = None
    kinds: list[Any] = [kind, type("Derived", (kind,), {})]
    for made in kinds:
        layer = made.__new__(made)
        torch.nn.Module.__init__(layer)
        with pytest.raises(SpecError, match=rf"second \({made.__name__}\): "):
            distribute(torch.nn.ModuleDict({"second": layer}), part)


@pytest.mark.parametrize("add", [utils.add_self_loops, utils.add_remaining_self_loops])
@each_part(5, owner=UNEVEN)
def test_loops_are_those_of_the_owned_nodes(part: GraphPart, add: Function) -> None:
    """Without num_nodes PyG takes the largest number in the edges, which may be a halo node's, or of no edge."""

    def with_loops(x: torch.Tensor, edges: torch.Tensor) -> Any:
        if add is utils.add_remaining_self_loops:
            edges = edges[:, edges[0] != edges[1]]
        return torch.cat([edges, torch.arange(len(x)).repeat(2, 1)], 1), None

    model = distribute(_Summing(lambda _, edges: (add(edges)[0], None)), part)
    torch.testing.assert_close(model(part.x, part.edge_index), _sum_of(with_loops)(part))


def test_masked_features_are_the_same_on_all_ranks() -> None:
    """A masked column is of all nodes."""
    masked = Net(lambda net, x: utils.mask_feature(x, 0.5, training=net.training)[1])

    def work(part: GraphPart) -> torch.Tensor:
        model = distribute(copy.deepcopy(masked), part)
        return torch.cat([model(part.x) for _ in range(8)])

    first, *others = on_parts(WHOLE, PARTS, work)
    assert 0 < first.sum() < first.numel()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("drop", [utils.dropout_edge, utils.dropout_adj])
@each_part()
def test_edges_are_dropped_in_training_alone(part: GraphPart, drop: Function) -> None:
    """Other edges in each forward; in evaluation none."""
    model: Any = distribute(_Summing(lambda _, e: (drop(e, training=model.training)[0], None)), part)
    whole = _sum_of(lambda _, e: (e, None))(part)
    torch.testing.assert_close(model.eval()(part.x, part.edge_index), whole)
    assert not torch.equal(model.train()(part.x, part.edge_index), whole)


def test_outside_of_a_distributed_model_the_functions_are_pygs() -> None:
    """Signature, source, name, pickle, TorchScript and torch.compile see what they saw."""
    on_parts(WHOLE, 1, lambda part: distribute(gnn.SAGEConv(WIDTH, 4), part))
    degree, edges = utils.degree, WHOLE.edge_index
    expected = torch.bincount(edges[0], minlength=40).double()
    assert list(inspect.signature(degree).parameters) == ["index", "num_nodes", "dtype"]
    assert "scatter_add_" in inspect.getsource(degree)
    assert pickle.loads(pickle.dumps(degree)) is degree  # noqa: S301
    for one in (degree, torch.jit.script(degree), torch.compile(degree, backend="eager", fullgraph=True)):
        assert torch.equal(one(edges[0], 40), expected)
    torch.testing.assert_close(gnn.global_mean_pool(WHOLE.x, None)[0], WHOLE.x.mean(0))


@each_part()
def test_a_model_keeps_its_own_reset_and_signatures(part: GraphPart) -> None:
    model: Any = distribute(_Encoder(), part)
    model.reset_parameters(gain=2, bias=part.rank)
    assert model.weight.tolist() == [2, 2]
    assert list(inspect.signature(model.encode).parameters) == ["x", "edge_index"]
