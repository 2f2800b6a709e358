"""Classes of a user's own, and PyG's functions by every way to call them: exact on parts, or refused in one line.

A function may be called by the name that was imported, through its module, by a partial or by `super()`. Left out:
which edges `dropout_edge` draws (each rank draws for its own), and the classes of CuGraph, dgNN and pyg-lib, which are
made without their constructors.
"""

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric import utils
from torch_geometric.nn import ChebConv, LabelPropagation, MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from typing_extensions import override

from models.graph.layers_of_pyg import WIDTH, Case, check_exact, weighted
from models.graph.torch_parts import PARTS, UNEVEN, WHOLE, each_part, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.refusals import CLASSES, FUNCTIONS

Function = Callable[..., Any]
pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:'dropout_adj' is deprecated"),
]


@pytest.mark.parametrize("normalization", [None, "sym", "rw"])
def test_chebconv_takes_the_largest_number_of_all_ranks(normalization: str | None) -> None:
    """Without `lambda_max` it scales by the largest number in the Laplacian; one part has no edge, and one no node."""
    case = Case(lambda: ChebConv(WIDTH, 4, K=3, normalization=normalization), weighted)
    check_exact(case, UNEVEN, check=normalization == "sym")


class _Weighted(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """Sums its neighbours with weights of its own: by the number of edges out of the source."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x, weight=self.weigh(edge_index, x))

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x_j * weight[:, None]

    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return 1 / utils.degree(edge_index[0], x.size(0))[edge_index[0]]


class _Stacked(_Weighted):
    """Gives degrees in a list and by name."""

    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        both = torch.stack([utils.degree(end, x.size(0)) for end in edge_index], 1).sum(1)
        twice = torch.mul(torch.tensor(2.0), other=utils.degree(edge_index[0], x.size(0)))
        return both[edge_index[1]] + twice[edge_index[0]]


class _OfLargest(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        degrees = utils.degree(edge_index[0], x.size(0))
        return (degrees / degrees.max())[edge_index[0]]


class _OfEdges(_Weighted):
    """Weighs each edge in `edge_update`, which asks for the nodes' own rows too."""

    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return self.edge_updater(edge_index, x=x)

    def edge_update(self, x_j: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (x_j * x[index]).sum(1)


class _DegreeInUpdate(_Weighted):
    def update(self, aggregated: torch.Tensor, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return aggregated + x / (1 + utils.degree(edge_index[0], x.size(0)))[:, None]


class _Attention(MessagePassing):  # type: ignore[misc]
    """Attends with a softmax as PyG's own layers do, without types."""

    def __init__(self) -> None:
        super().__init__(node_dim=0)
        self.score = torch.nn.Linear(2 * WIDTH, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j, index, ptr, size_i) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return x_j * utils.softmax(self.score(torch.cat([x_i, x_j], 1)), index, ptr, size_i)


def _corrected(model: Any, x: torch.Tensor, g: Any) -> Any:
    given = g.y[g.train_mask], g.train_mask, g.edge_index, g.edge_weight
    return x[:, :3] * model.smooth(model.correct(x[:, :3].softmax(1), *given), *given)


EXACT: dict[str, Case] = {
    "degrees and operations on them": Case(_Stacked),
    "a step that asks for edges": Case(_DegreeInUpdate),
    "a step that asks for own rows": Case(_OfEdges),
    "attention without types": Case(_Attention),
    "torch's no_grad": Case(lambda: LabelPropagation(2, 0.9), lambda spread, x, g: x * spread(x, g.edge_index)),
    "CorrectAndSmooth": Case(lambda: gnn.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False), _corrected),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_users_class_is_exact(name: str) -> None:
    """And PyG's, whose forward is no layer's."""
    check_exact(EXACT[name])


def _own_degrees(part: GraphPart) -> torch.Tensor:
    return torch.bincount(utils.degree(part.edge_index[1], part.num_owned, torch.int64), minlength=50)


def _distributed(model: torch.nn.Module, part: GraphPart) -> Any:
    return distribute(model, part)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a method over all nodes": (
        lambda p: _distributed(gnn.models.RECT_L(8, 4), p).get_semantic_labels(p.x, p.y, p.train_mask),
        "RECT_L.get_semantic_labels: it takes means over this rank's nodes",
    ),
    "a largest degree": (
        lambda p: _distributed(_OfLargest(), p)(p.x, p.edge_index), r"degree\(...\).max\(\) is of this rank's"
    ),
    "a loss of edges": (
        lambda p: _distributed(gnn.GAE(gnn.GCN(8, 8, 2)), p).recon_loss(p.x, p.edge_index), "GAE.recon_loss: it is"
    ),
    "a scale": (lambda p: _distributed(gnn.CorrectAndSmooth(2, 0.5, 2, 0.5), p), "take autoscale=False"),
    "degrees of one part": (
        lambda p: _distributed(gnn.PNAConv(WIDTH, 4, ["mean"], ["attenuation"], _own_degrees(p)), p),
        r"deg, the histogram of degrees.*differs between the ranks",
    ),
    "labels without a column for each class": (
        lambda p: _distributed(LabelPropagation(2, 0.9), p)(p.y, p.edge_index), r"num_classes=part\.num_classes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@each_part()
def test_a_call_over_all_nodes_is_refused(part: GraphPart, name: str) -> None:
    """By name, on every rank: rank 0's numbers took the place of the others', or the ranks made unlike rows."""
    call, words = REFUSED[name]
    with pytest.raises(SpecError, match=words):
        call(part)


@each_part()
def test_what_refusals_propose_goes_through(part: GraphPart) -> None:
    """Degrees of all ranks, and a column for each class."""
    degrees = ug.sum_ranks(_own_degrees(part), part)
    distribute(gnn.PNAConv(WIDTH, 4, ["mean"], ["attenuation"], degrees), part)
    labels = utils.one_hot(part.y, num_classes=part.num_classes)
    assert distribute(LabelPropagation(2, 0.9), part)(labels, part.edge_index).shape == (part.num_owned, 3)


class _Summing(MessagePassing):  # type: ignore[misc]
    """Sums over edges that one of PyG's functions changes.

    *change* calls the function with rows and edges, and returns edges and their weights.
    """

    def __init__(self, function: Function, change: Function) -> None:
        super().__init__()
        self.function, self.change = function, change

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        edges, weight = self.change(self.call, x, edge_index)
        return self.propagate(edges, x=x, weight=torch.ones(edges.size(1)) if weight is None else weight)

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x_j * weight[:, None]

    def call(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)


class _BySuper(_Summing):
    @override
    def call(self, *args: Any, **options: Any) -> Any:
        return super().call(*args, **options)


def _through_module(function: Function) -> Function:
    name, _, rest = function.__qualname__.partition(".")

    def call(*args: Any, **options: Any) -> Any:
        found = getattr(sys.modules[function.__module__], name)
        return (getattr(found, rest) if rest else found)(*args, **options)

    return call


WAYS: dict[str, Callable[[Function, Function], torch.nn.Module]] = {
    "name": _Summing,
    "module": lambda function, change: _Summing(_through_module(function), change),
    "partial": lambda function, change: _Summing(partial(function), change),
    "super()": _BySuper,
}
CALLS: dict[str, tuple[Function, Function]] = {
    "degree": (utils.degree, lambda f, x, e: (e, 1 / f(e[0], len(x))[e[0]])),
    "gcn_norm": (gcn_norm, lambda f, x, e: f(e, num_nodes=len(x))),
    "get_laplacian": (utils.get_laplacian, lambda f, x, e: f(e, None, "sym", None, len(x))),
    "ChebConv": (ChebConv.__norm__, lambda f, x, e: f(ChebConv(WIDTH, WIDTH, 2), e, len(x), None, "rw")),
    "normalize_edge_index": (utils.normalize_edge_index, lambda f, x, e: f(e, len(x))),
    "add_self_loops": (utils.add_self_loops, lambda f, x, e: f(e, num_nodes=x.size(0))),
    "add_remaining_self_loops": (utils.add_remaining_self_loops, lambda f, x, e: f(e, num_nodes=x.size(0))),
    "dropout_edge": (utils.dropout_edge, lambda f, _, e: (f(e, training=False)[0], None)),
    "dropout_adj": (utils.dropout_adj, lambda f, _, e: f(e, training=False)),
    "mask_feature": (utils.mask_feature, lambda f, x, e: (e, f(x, training=False)[0][:, 0][e[1]])),
}


@pytest.mark.parametrize(("name", "way"), [*((name, "module") for name in CALLS), ("degree", "super()")])
def test_a_function_is_exact_by_every_way(name: str, way: str) -> None:
    """Rows and gradients are those of one process. Which way is taken makes no difference to what a function does."""
    check_exact(Case(lambda: WAYS[way](*CALLS[name])), check=False)


@each_part(2)
def test_a_function_is_refused_by_every_way(part: GraphPart) -> None:
    """In one line that names it; which way is taken makes no difference to what is refused."""
    calls: list[tuple[Function, Function, str]] = [
        (function, lambda f, _, e: f(e, force_undirected=True), "force_undirected=True: an edge and the one back")
        for function in (utils.dropout_edge, utils.dropout_adj)
    ]
    for function in FUNCTIONS:
        needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
        given = [part.x] * len(needed)
        calls.append((function, lambda f, *_, given=given: f(*given), f"^{function.__qualname__}: "))
    for way, (function, change, words) in [*zip(WAYS, calls[:1] * len(WAYS), strict=True), *product(["name"], calls)]:
        with pytest.raises(SpecError, match=words):
            distribute(WAYS[way](function, change), part, check=False)(part.x, part.edge_index)


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
def test_loops_are_those_of_the_owned_nodes(add: Function) -> None:
    """Without num_nodes PyG takes the largest number in the edges, which may be a halo node's, or of no edge."""

    def with_loops(_: Function, x: torch.Tensor, edges: torch.Tensor) -> Any:
        if add is utils.add_remaining_self_loops:
            edges = edges[:, edges[0] != edges[1]]
        return torch.cat([edges, torch.arange(len(x)).repeat(2, 1)], 1), None

    def work(part: GraphPart) -> None:
        expected = distribute(_Summing(add, with_loops), part, check=False)(part.x, part.edge_index)
        model = distribute(_Summing(add, lambda f, _, edges: (f(edges)[0], None)), part)
        torch.testing.assert_close(model(part.x, part.edge_index), expected)

    on_parts(WHOLE, 5, work, UNEVEN)


class _Masked(torch.nn.Module):
    @override
    def forward(self, x: torch.Tensor) -> Any:
        return utils.mask_feature(x, 0.5, training=self.training)[1]


def test_masked_features_are_the_same_on_all_ranks() -> None:
    """A masked column is of all nodes."""

    def work(part: GraphPart) -> torch.Tensor:
        model = distribute(_Masked(), part)
        return torch.cat([model(part.x) for _ in range(8)])

    first, *others = on_parts(WHOLE, PARTS, work)
    assert 0 < first.sum() < first.numel()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("drop", [utils.dropout_edge, utils.dropout_adj])
@each_part()
def test_edges_are_dropped_in_training_alone(part: GraphPart, drop: Function) -> None:
    """Other edges in each forward; in evaluation none."""
    model = distribute(_Summing(drop, lambda f, _, e: (f(e, training=model.training)[0], None)), part)
    whole = distribute(_Summing(drop, lambda _, __, e: (e, None)), part)(part.x, part.edge_index)
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


class _Encoder(torch.nn.Module):
    """Has a method of its own that a script calls, and a reset with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = gnn.GCNConv(WIDTH, WIDTH), torch.nn.Parameter(torch.ones(2))

    def encode(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.conv(x, edge_index) / (1 + utils.degree(edge_index[0], len(x)))[:, None]

    def reset_parameters(self, gain: float, *, bias: float = 0) -> None:
        torch.nn.init.constant_(self.weight, gain + bias)


def test_a_method_and_a_submodule_may_be_called_by_themselves() -> None:
    """They know the part; `reset_parameters` takes what the user's takes."""
    alone = _Encoder()

    def work(part: GraphPart) -> None:
        model: Any = distribute(copy.deepcopy(alone), part)
        for one, other in ((model.encode, alone.encode), (model.conv, alone.conv)):
            torch.testing.assert_close(one(part.x, part.edge_index), other(WHOLE.x, WHOLE.edge_index)[part.owned])
        model.reset_parameters(gain=2, bias=part.rank)
        assert model.weight.tolist() == [2, 2]
        assert list(inspect.signature(model.encode).parameters) == ["x", "edge_index"]

    on_parts(WHOLE, PARTS, work)
