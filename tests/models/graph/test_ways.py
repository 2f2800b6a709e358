"""Every way to PyG's functions and classes ends alike: exact on parts, or refused in one line.

A function may be called by the name that was imported, through its module, by a partial or by `super()`. Struck out:
which edges `dropout_edge` draws (each rank draws for its own), and the classes of CuGraph, dgNN and pyg-lib, which are
made without their constructors.
"""

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric import utils
from torch_geometric.nn import ChebConv, MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from typing_extensions import override

from models.graph.layers_of_pyg import Case
from models.graph.test_torch_layers import PARTS, WHOLE, check_exact
from models.graph.torch_parts import on_parts
from unilaunch.errors import SpecError
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.refusals import CLASSES, FUNCTIONS

WIDTH = 8
Function = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("float64")


class _Summing(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """Sums over edges that a function changes.

    Args:
        function: One of PyG's.
        change: Calls it with rows and edges, and returns edges and their weights.
    """

    def __init__(self, function: Function, change: Function) -> None:
        super().__init__()
        self.function, self.change = function, change

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """Sum the weighted rows."""
        edges, weight = self.change(self.call, x, edge_index)
        return self.propagate(edges, x=x, weight=torch.ones(edges.size(1)) if weight is None else weight)

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Weigh the sources."""
        return x_j * weight[:, None]

    def call(self, *args: Any, **options: Any) -> Any:
        """Call the function."""
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


@pytest.mark.filterwarnings("ignore:'dropout_adj' is deprecated")
@pytest.mark.parametrize("way", ["module", "super()"])
@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_exact_by_every_way(name: str, way: str) -> None:
    """Rows and gradients are those of one process."""
    check_exact(Case(lambda: WAYS[way](*CALLS[name])), check=False)


def _undirected(function: Function, _: torch.Tensor, edge_index: torch.Tensor) -> Any:
    return function(edge_index, force_undirected=True)


@pytest.mark.filterwarnings("ignore:'dropout_adj' is deprecated")
@pytest.mark.parametrize("way", WAYS)
def test_a_function_is_refused_by_every_way(way: str) -> None:
    """In one line that names it."""

    def work(part: GraphPart) -> None:
        for function in FUNCTIONS:
            needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
            given = [part.x] * len(needed)
            model = distribute(WAYS[way](function, lambda f, *_, given=given: f(*given)), part, check=False)
            with pytest.raises(SpecError, match=f"^{function.__qualname__}: "):
                model(part.x, part.edge_index)
        for function in (utils.dropout_edge, utils.dropout_adj):
            model = distribute(WAYS[way](function, _undirected), part, check=False)
            with pytest.raises(SpecError, match="force_undirected=True: an edge and the one back"):
                model(part.x, part.edge_index)

    on_parts(WHOLE, PARTS, work)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_is_refused_and_what_is_derived_from_it(kind: type[torch.nn.Module]) -> None:
    """By its place in the model and its name; some classes cannot be made without a library."""
    kinds: list[Any] = [kind, type("Derived", (kind,), {})]
    part: Any = None
    for made in kinds:
        layer = made.__new__(made)
        torch.nn.Module.__init__(layer)
        with pytest.raises(SpecError, match=rf"second \({made.__name__}\): "):
            distribute(torch.nn.ModuleDict({"second": layer}), part)


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
        """Divide by the number of edges out of each node."""
        return self.conv(x, edge_index) / (1 + utils.degree(edge_index[0], len(x)))[:, None]

    def reset_parameters(self, gain: float, *, bias: float = 0) -> None:
        """Take numbers."""
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
