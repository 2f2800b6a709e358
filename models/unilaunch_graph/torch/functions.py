"""PyG's functions know the part on which a distributed model runs, whoever calls them and by whatever name.

A model's file may have imported `degree` before; a helper, a partial or `super()` may call it. So no name is replaced:
each function gets, once in a process, the code of a dispatcher, which calls what the function was, unless a distributed
model runs in this thread. Signature, source, defaults and name stay the function's own. Then come the functions that
count, add or drop edges, exact on a part, and PyG's median.
"""

import inspect
import threading
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from types import FunctionType
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves
from torch_geometric.nn.aggr import QuantileAggregation
from torch_geometric.nn.conv import ChebConv, gcn_conv
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    dropout_adj,
    dropout_edge,
    get_laplacian,
    mask_feature,
    remove_self_loops,
)
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_graph.network.functions import halo, sum_halo
from unilaunch_graph.torch.part import GraphPart, is_same
from unilaunch_graph.torch.reductions import global_sum
from unilaunch_graph.torch.running import RUNNING, current

#: What a function does on a part, given what it was, the part, and all of its arguments by position.
OnPart = Callable[..., Any]
#: How an argument is passed on.
_MARKS: Mapping[Any, str] = {
    Parameter.VAR_POSITIONAL: "*{0}",
    Parameter.VAR_KEYWORD: "**{0}",
    Parameter.KEYWORD_ONLY: "{0}={0}",
}
_INSTALLING = threading.Lock()
_INSTALLED: set[FunctionType] = set()


def install(functions: Mapping[Callable[..., Any], OnPart]) -> None:
    """Let the functions that are the keys do what the values do wherever a distributed model runs."""
    with _INSTALLING:
        for key, exact in functions.items():
            function = cast("FunctionType", inspect.unwrap(key))  # what `deprecated` wraps
            if function not in _INSTALLED:
                _INSTALLED.add(function)
                _dispatch(function, exact)


def _dispatch(function: FunctionType, exact: OnPart) -> None:
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    def choose(*args: Any, **options: Any) -> Any:
        part = RUNNING.part
        return original(*args, **options) if part is None else exact(original, part, *args, **options)

    parameters = inspect.signature(function).parameters.values()
    taken = Signature([one.replace(default=Parameter.empty, annotation=Parameter.empty) for one in parameters])
    given = ", ".join(_MARKS.get(one.kind, "{0}").format(one.name) for one in parameters)
    name = f"_unilaunch_{function.__qualname__.replace('.', '_')}"
    template = compile(f"def call{taken}: return {name}({given})", function.__code__.co_filename, "exec")
    code = next(constant for constant in template.co_consts if inspect.iscode(constant))
    function.__globals__[name] = choose
    function.__code__ = code.replace(
        co_name=function.__name__, co_qualname=function.__qualname__, co_firstlineno=function.__code__.co_firstlineno
    )


def quantile(  # noqa: PLR0913, PLR0917
    self: QuantileAggregation, x: torch.Tensor, index: torch.Tensor, ptr: Any, dim_size: int, dim: int = -2  # noqa: ARG001
) -> torch.Tensor:  # fmt: skip
    """Return what PyG's forward returns, which fails if the first node has no row: it gets a node in front that has."""
    rows = x.new_zeros([2 if axis == dim % x.dim() else size for axis, size in enumerate(x.shape)])
    index = torch.cat([index.new_zeros(2), index + 1])
    out: torch.Tensor = type(self).forward(self, torch.cat([rows, x], dim), index, None, dim_size + 1, dim)
    return out.narrow(dim, 1, dim_size)


Weights = torch.Tensor | None


def _exact_gcn_norm(  # noqa: PLR0913, PLR0917
    _: Any, part: GraphPart, edge_index: torch.Tensor, edge_weight: Weights, num_nodes: int | None, improved: bool,  # noqa: FBT001
    with_loops: bool, __: str, dtype: torch.dtype | None,  # noqa: FBT001
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the norm; that of the part's own edges is made once."""
    _refuse_matrix(edge_index)
    _check_nodes("gcn_norm", num_nodes, part)
    loop = 2.0 if improved else 1.0

    def norm() -> tuple[torch.Tensor, torch.Tensor]:
        return _gcn_norm(edge_index, edge_weight, part, loop if with_loops else None, dtype)

    if not is_same(edge_index, part.edge_index) or not (edge_weight is None or is_same(edge_weight, part.edge_weight)):
        return norm()
    given = (part.edge_index,) if edge_weight is None else (part.edge_index, edge_weight)
    return part.cached(("gcn_norm", len(given), loop, with_loops, dtype), given, norm)


def _exact_laplacian(  # noqa: PLR0913, PLR0917
    _: Any, part: GraphPart, edge_index: torch.Tensor, edge_weight: Weights, normalization: str | None,
    dtype: torch.dtype | None, num_nodes: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    _check_nodes("get_laplacian", num_nodes, part)
    return _laplacian(edge_index, edge_weight, part, normalization, dtype)


def _exact_degree(
    _: Any, part: GraphPart, index: torch.Tensor, num_nodes: int | None, dtype: torch.dtype | None
) -> torch.Tensor:  # fmt: skip
    _check_degree(num_nodes, part)
    return OwnedRows.wrap(_sum_by(index, torch.ones(len(index), dtype=dtype, device=index.device), part), part)


def _exact_cheb_norm(  # noqa: PLR0913, PLR0917
    norm: Any, part: GraphPart, layer: ChebConv, edge_index: torch.Tensor, num_nodes: int | None, edge_weight: Weights,
    normalization: str | None, lambda_max: Any, dtype: torch.dtype | None, batch: Any,
) -> Any:  # fmt: skip
    """Scale by the largest number of the whole graph's Laplacian; PyG's takes the rest from `get_laplacian`."""
    if lambda_max is None:
        lambda_max = 2.0 * _global_max(_laplacian(edge_index, edge_weight, part, normalization, dtype)[1], part)
    return norm(layer, edge_index, num_nodes, edge_weight, normalization, lambda_max, dtype, batch)


def _loops_of_owned(  # noqa: PLR0913, PLR0917
    add: Any, part: GraphPart, edge_index: Any, edge_attr: Any, fill_value: Any, num_nodes: Any
) -> Any:  # fmt: skip
    """Give a loop to each owned node where the caller does not say how many nodes there are.

    PyG takes the largest number in the edges: that may be a halo node's, or none in a part without edges.
    """
    _refuse_matrix(edge_index)
    return add(edge_index, edge_attr, fill_value, part.num_owned if num_nodes is None else num_nodes)


def _without_loops(remove: Any, _: GraphPart, edge_index: Any, edge_attr: Any) -> Any:
    _refuse_matrix(edge_index)
    return remove(edge_index, edge_attr)


def _drop_one_way(drop: Any, _: GraphPart, *args: Any) -> Any:
    given = dict(zip(signature(drop).parameters, args, strict=True))
    if given["force_undirected"] and given["training"] and given["p"]:
        raise SpecError(
            f"{drop.__name__}: force_undirected=True: an edge and the one back may be on two ranks, which draw for "
            "themselves: expected force_undirected=False, which drops each direction alone"
        )
    return drop(*args)


def _exact_mask_feature(  # noqa: PLR0913, PLR0917
    draw: Any, part: GraphPart, x: torch.Tensor, p: float, mode: str, fill_value: float, training: bool  # noqa: FBT001
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    rows, mask = draw(x, p, mode, fill_value, training)
    if mode != "col" or not training or p == 0:
        return rows, mask
    part.ranks.broadcast(mask)  # the columns that rank 0 has drawn: a column is of all nodes
    return x.masked_fill(~mask, fill_value), mask


#: What each function does on a part. `normalize_edge_index` calls two of them.
EXACT_FUNCTIONS: dict[Callable[..., Any], OnPart] = {
    gcn_conv.gcn_norm: _exact_gcn_norm,
    get_laplacian: _exact_laplacian,
    degree: _exact_degree,
    ChebConv.__norm__: _exact_cheb_norm,
    add_self_loops: _loops_of_owned,
    add_remaining_self_loops: _loops_of_owned,
    dropout_adj: _drop_one_way,
    dropout_edge: _drop_one_way,
    mask_feature: _exact_mask_feature,
    remove_self_loops: _without_loops,
}


def _refuse_matrix(edges: Any) -> None:
    """Refuse a sparse matrix as edges: a part's has more columns than rows, of which PyG makes no loops and degrees."""
    if not isinstance(edges, torch.Tensor) or edges.layout is not torch.strided:
        raise SpecError(
            "edges are given as a sparse matrix to a layer that adds or removes loops or takes degrees: expected "
            "part.edge_index, and part.edge_weight where it takes weights"
        )


def _check_nodes(name: str, num_nodes: int | None, part: GraphPart) -> None:
    if num_nodes is not None and num_nodes != part.num_owned:
        raise SpecError(
            f"{name}: num_nodes={num_nodes}: expected x.size(0), which is num_owned = {part.num_owned}: under "
            "ug.torch.distribute it is about owned nodes; count other things (edge types) in the whole graph beforehand"
        )


def _check_degree(num_nodes: int | None, part: GraphPart) -> None:
    if num_nodes is None:
        raise SpecError(
            "degree: num_nodes is not given: expected x.size(0) under ug.torch.distribute; count other things (edge "
            "types) in the whole graph beforehand"
        )
    _check_nodes("degree", num_nodes, part)


def _global_max(weights: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return the largest of all ranks' weights; a rank may have none."""
    largest = torch.cat([weights, weights.new_full((1,), -torch.inf)]).max()
    ranks = torch.arange(part.world_size, device=weights.device)
    return global_sum(torch.where(ranks == part.rank, largest, 0.0), part.ranks).max()


def _gcn_norm(
    edge_index: torch.Tensor, edge_weight: Weights, part: GraphPart, loop: float | None, dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """D^-1/2 (A + I) D^-1/2 (Kipf and Welling, ICLR 2017, equation 2); D sums the weights of the edges into a node."""
    if loop is not None:
        edge_index, edge_weight = add_remaining_self_loops(edge_index, edge_weight, loop, part.num_owned)
    weights = _weights(edge_index, edge_weight, dtype)
    source, target = edge_index
    scale = _power(weights.new_zeros(part.num_owned).index_add(0, target, weights), -0.5)
    return edge_index, halo(scale, part)[source] * weights * scale[target]


def _laplacian(
    edge_index: torch.Tensor, edge_weight: Weights, part: GraphPart, normalization: str | None,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """D - A, I - D^-1/2 A D^-1/2 ("sym") or I - D^-1 A ("rw"); D sums the weights of the edges out of a node."""
    edge_index, edge_weight = remove_self_loops(edge_index, edge_weight)
    weights = _weights(edge_index, edge_weight, dtype)
    source, target = edge_index
    degrees = _sum_by(source, weights, part)
    if normalization is None:
        edge_index, _ = add_self_loops(edge_index, num_nodes=part.num_owned)
        return edge_index, torch.cat([-weights, degrees])
    scale = _power(degrees, -0.5 if normalization == "sym" else -1.0)
    weights = halo(scale, part)[source] * weights
    if normalization == "sym":
        weights = weights * scale[target]
    laplacian: tuple[torch.Tensor, torch.Tensor] = add_self_loops(
        edge_index, -weights, fill_value=1.0, num_nodes=part.num_owned
    )
    return laplacian


def _weights(edge_index: torch.Tensor, edge_weight: Weights, dtype: torch.dtype | None) -> torch.Tensor:
    if edge_weight is None:
        return torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
    return edge_weight


def _power(degrees: torch.Tensor, exponent: float) -> torch.Tensor:
    power = degrees.pow(exponent)
    return power.masked_fill(power == float("inf"), 0.0)


def _sum_by(index: torch.Tensor, weights: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return the sum of the weights for each owned node, over the edges of all ranks. (num_owned,)"""
    return sum_halo(weights.new_zeros(part.num_owned + part.num_halo).index_add(0, index, weights), part)


#: Functions of all numbers of a tensor.
_STATISTICS = frozenset({
    "amax", "amin", "aminmax", "argmax", "argmin", "cumsum", "linalg_norm", "linalg_vector_norm", "log_softmax",
    "logsumexp", "max", "mean", "median", "min", "norm", "normalize", "prod", "quantile", "softmax", "sort", "std",
    "std_mean", "sum", "topk", "var", "var_mean",
})  # fmt: skip
_OF_OWN = (
    "degree(...).{}() is of this rank's nodes: expected ug.torch.sum_ranks(degrees[:, None].sum(0)) for the sum over "
    "the whole graph, that / part.num_nodes for the mean; calculate another number beforehand, and give it to the model"
)


#: A tensor of this type is a view. If its base were one, it would have a base too: torch.compile goes to the last.
_BASE: Any = torch.Tensor._base.__get__  # type: ignore[union-attr]  # noqa: SLF001


class OwnedRows(torch.Tensor):
    """One number for each owned node, which an edge's source may index too: `degrees[edge_index[0]]`.

    A layer of a user's own does that, where it makes its normalisation itself. An index fetches the halo's numbers. A
    number of all nodes (the largest, the mean) is refused, since it would be this rank's.
    """

    part: GraphPart

    @staticmethod
    def wrap(numbers: torch.Tensor, part: GraphPart) -> torch.Tensor:
        """Return *numbers* as this type. (num_owned,)"""
        wrapped = numbers.as_subclass(OwnedRows)
        wrapped.part = part
        return wrapped

    @classmethod
    @override
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and isinstance(args[0], cls) and _is_edge_index(args[1]):
            return halo(args[0].as_subclass(torch.Tensor), current(args[0].part))[args[1]]
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func.__name__ in _STATISTICS and len(tensors) == 1:  # max(degrees, others) is of each node
            raise SpecError(_OF_OWN.format(func.__name__))
        owned = next(tensor for tensor in tensors if isinstance(tensor, cls))
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or func == _BASE:
            return result
        result = result.as_subclass(torch.Tensor)
        is_of_nodes = result.shape == owned.shape and result.dtype.is_floating_point
        return cls.wrap(result, owned.part) if is_of_nodes else result


def _is_edge_index(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.int64 and index.dim() == 1
