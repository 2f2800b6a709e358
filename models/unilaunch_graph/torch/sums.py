"""Sums over edges without messages: a product with the matrix of the edges, in place of a row for each edge.

PyG's `propagate` takes the row of each edge's source, gives these rows to the layer's `message`, and sums what comes
back. Under `distribute` it takes them from `SourceRows`, and what it gets are `EdgeRows`: a tensor that is made when
somebody looks at it; torch then swaps the two. EdgeRows times a number of each edge are EdgeRows; where `aggregate`
gets them, their sum or mean is a product with a sparse matrix, as PyG's is if a sparse matrix is given in place of
edge_index. Whatever else a layer does with them makes the tensor, and the layer goes on with messages. So the layer's
own functions run in each call, and nothing is guessed about them.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn.aggr import Aggregation, MeanAggregation, SumAggregation
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch_graph.operators.edges import ChosenEdges, order_edges
from unilaunch_graph.operators.halo_edges import Neighbours
from unilaunch_graph.torch.layers import OPERATIONS, made_of
from unilaunch_graph.torch.part import GraphPart, is_same, version_of
from unilaunch_graph.torch.running import is_eager

_AGGREGATIONS: Mapping[type[Aggregation], bool] = {SumAggregation: False, MeanAggregation: True}  # whether it is a mean
_LIFTS: frozenset[Any] = frozenset({torch.index_select, torch.Tensor.index_select})
_PRODUCTS: frozenset[Any] = frozenset(
    {torch.mul, torch.multiply}
    | {getattr(torch.Tensor, name) for name in ("mul", "multiply", "__mul__", "__rmul__")}
)  # fmt: skip
#: What can be asked of a tensor that is not made yet.
_FACTS: frozenset[Any] = frozenset(
    {getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")}
    | {getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "__len__", "is_floating_point", "is_complex")}
    | {torch.numel, torch.is_floating_point, torch.is_complex}
)  # fmt: skip
#: Edges of the user's own, such as those with loops added in each call, whose order is kept for each part.
_KEPT = 2


def is_written_to_sum(layer: MessagePassing) -> bool:
    """Return whether `propagate` and `aggregate` are PyG's own; to be asked before `distribute` binds its own."""
    is_own = "aggregate" in vars(layer) or type(layer).aggregate is not MessagePassing.aggregate
    return is_of_pyg(layer, "propagate") and not is_own


def makes_no_messages(layer: MessagePassing) -> bool:
    """Return whether it is likely that the layer's messages stay unmade; for a compiler, which must know it ahead."""
    names = layer.inspector.get_param_names("message")
    is_of_sources = [name[-2:] for name in names if name[-2:] in {"_i", "_j"}] == ["_j"]
    return is_of_sources and is_written_to_sum(layer) and _sums(layer)


def _sums(layer: MessagePassing) -> bool:
    return layer.node_dim in {-2, 0} and aggregates_as_written(layer, *_AGGREGATIONS)


def source_rows(layer: MessagePassing, rows: Any, edges: torch.Tensor, part: GraphPart) -> Any:
    """Return the rows of all sources as what gives `EdgeRows`; the rows themselves where messages must be made.

    Args:
        layer: The layer.
        rows: Of owned nodes and, behind them, of halo nodes. (..., sources, width), or (sources, ..., width)
        edges: The layer's edges. (2, edges)
        part: This rank's part.
    """
    if not _sums(layer) or not is_on_host(rows) or edges.device.type != "cpu":
        return rows
    source = _Source(rows, layer.node_dim % rows.dim(), edges, part, _writes_to(rows))
    return _stand_in(SourceRows, source, None)


def is_on_host(rows: Any) -> bool:
    """Return whether they are rows that unilaunch's operators on host arrays take, now, outside of any transform."""
    return (
        type(rows) in {torch.Tensor, torch.nn.Parameter}
        and rows.dim() > 1
        and rows.device.type == "cpu"
        and rows.layout is torch.strided
        and rows.dtype in {torch.float32, torch.float64}
        and is_eager()
        and not torch._C._is_tracing()  # noqa: SLF001  (of torch.jit.trace)
    )


def sum_of(layer: MessagePassing, messages: Any, index: Any) -> torch.Tensor | None:
    """Return what `aggregate` returns of messages that are not made; None if they are, or it must look at them.

    Args:
        layer: The layer.
        messages: What `aggregate` got.
        index: The target of each; None if it is given in another way.
    """
    if type(messages) is not EdgeRows or not _sums(layer):
        return None
    rows, axis, edges, part, _ = messages.source
    if not rows.numel() or not is_same(index, edges[1]) or not is_eager():
        return None
    messages.source.refuse_writes()
    chosen = _order(edges, part)
    given = rows if messages.has_gradient else rows.detach()
    matrix = given.movedim(axis, 0).flatten(1)  # a node's columns of all samples side by side
    is_mean = _AGGREGATIONS[type(layer.aggr_module)]
    sums = OPERATIONS.apply(_operator(chosen, messages.factor, matrix, is_mean=is_mean), matrix)
    shape = rows.movedim(axis, 0).shape[1:]
    return sums if rows.dim() == 2 else sums.reshape(len(sums), *shape).movedim(0, axis)  # noqa: PLR2004


def _writes_to(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  (as in `version_of`)


class _Source(NamedTuple):
    """Where rows come from: those of all sources, the axis of nodes, the edges, the part, and the writes till then."""

    rows: torch.Tensor
    axis: int
    edges: torch.Tensor
    part: GraphPart
    writes: int

    def refuse_writes(self) -> None:
        """Refuse rows that were written to after the layer took them.

        Raises:
            RuntimeError: They were.
        """
        if _writes_to(self.rows) != self.writes:
            raise RuntimeError(
                "the rows of the sources (x of x_j) were written to in place before the layer looked at x_j: expected "
                "the rows as they were: look at x_j first (x_j.clone()), or write to a copy of x"
            )

    @property
    def ends(self) -> torch.Tensor:
        """The source of each edge."""
        return self.edges[0]


class _Factor(NamedTuple):
    """A number of each edge, as it was when it was multiplied.

    Attributes:
        values: As many as edges, of the rows' type, shaped to multiply `EdgeRows`. (edges, 1, ...)
        owner: The user's tensor that holds them, for what is made of them once; None if they are a product.
        version: The owner's, at that time.
    """

    values: torch.Tensor
    owner: torch.Tensor | None = None
    version: Any = None


class SourceRows(torch.Tensor):
    """The rows of all sources, as a tensor without memory: the row of each edge's source is not made.

    What torch calls below Python makes its numbers, and has the gradient of `_StandIn`.
    """

    source: _Source

    def made(self) -> torch.Tensor:
        """Return the tensor for one call."""
        return self.source.rows

    @classmethod
    @override
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give facts of the tensor, or another one that is not made; for anything else, make it."""
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (torch documents it for this)
                return func(*args, **(kwargs or {}))
        unmade = _without_making(func, args, kwargs)
        if unmade is not None:
            return unmade
        changes = _may_change(func, kwargs or {})
        for one in tree_leaves((args, kwargs)):
            if type(one) is EdgeRows and not one.become() and changes:
                raise RuntimeError(_REFUSED)
        args, kwargs = tree_map_only(SourceRows, lambda one: one.made(), (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    @override
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Make the tensor for what torch calls below Python: a function in C++, a scripted one."""
        if func._schema.is_mutable:  # noqa: SLF001  (torch has no other name for it)
            raise RuntimeError(_REFUSED)
        args, kwargs = tree_map_only(SourceRows, lambda one: one.made(), (args, kwargs or {}))
        return func(*args, **kwargs)


class EdgeRows(SourceRows):
    """The row of each edge's source, times a number of each edge.

    At the layer's first look the tensor takes the place of this object: torch swaps the two. From then on the layer has
    a tensor like any other, and so is each product that was made of this one before.
    """

    factor: _Factor | None
    has_gradient: bool
    parent: "EdgeRows | None"  # what was multiplied, if this is a product
    products: "list[tuple[ref[EdgeRows], torch.Tensor]]"  # and what was multiplied by

    @override
    def made(self) -> torch.Tensor:
        self.source.refuse_writes()
        rows = self.source.rows.index_select(self.source.axis, self.source.ends)
        return rows if self.factor is None else rows * self.factor.values

    def become(self) -> bool:
        """Become the tensor, and return whether it has.

        It cannot while torch holds this object too (an `autograd.Function` has it), or in a transform: then each call
        makes a tensor.
        """
        if type(self.parent) is EdgeRows:
            self.parent.become()
        if type(self) is not EdgeRows:  # with its parent
            return True
        if not is_eager():
            return False
        keep = torch.autograd.graph.saved_tensors_hooks(_same, _same)  # a checkpoint's second run makes nothing
        with torch.inference_mode(mode=False), torch.set_grad_enabled(self.has_gradient), keep:
            return self._swap(self.made())

    def _swap(self, tensor: torch.Tensor) -> bool:
        products = [(product(), numbers) for product, numbers in self.products]
        self.products.clear()  # torch swaps nothing that is referred to weakly
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            try:
                torch.utils.swap_tensors(self, tensor)  # type: ignore[no-untyped-call]
            except RuntimeError:
                return False
        for product, numbers in products:
            if type(product) is EdgeRows:
                product._swap(cast("torch.Tensor", self) * numbers)  # noqa: SLF001  (of its own class)
        return True


#: Functions that change a tensor, beside those whose names end with one "_".
_CHANGES = frozenset({
    "__setitem__", "__set__", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "backward"
})  # fmt: skip
_REFUSED = (
    "x_j is written to, or gets a hook, where unilaunch has not made it: in a function of torch.autograd.Function, in "
    "C++ or in torch.func: expected a copy: x_j.clone()"
)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _may_change(func: Any, kwargs: Mapping[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name in _CHANGES or "out" in kwargs or (name.endswith("_") and not name.endswith("__"))


def _without_making(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what *func* returns if that need not be made; else None."""
    if func in _LIFTS and not kwargs and len(args) == 3 and type(args[0]) is SourceRows:  # noqa: PLR2004
        rows, axis, index = args
        source = rows.source
        if axis % len(source.rows.shape) == source.axis and is_same(index, source.ends):
            return _edge_rows(source, None, None)
    if func in _PRODUCTS and not kwargs and len(args) == 2:  # noqa: PLR2004
        one, other = args if type(args[0]) is EdgeRows else args[::-1]
        if type(one) is EdgeRows and _is_factor(other, one):
            factor = _factor(other, one.dtype)
            both = factor if one.factor is None else _Factor(one.factor.values * factor.values)
            product = _edge_rows(one.source, both, one)
            one.products.append((ref(product), factor.values))
            return product
    return None


def _is_factor(numbers: Any, rows: EdgeRows) -> bool:
    """Return whether they are a number of each edge, which no gradient is for.

    Not where the rows have a gradient and it is off: an `autograd.Function` may run, whose output is the product.
    """
    return (
        type(numbers) in {torch.Tensor, torch.nn.Parameter}
        and numbers.device.type == "cpu"
        and numbers.layout is torch.strided
        and not (numbers.requires_grad and torch.is_grad_enabled())
        and (torch.is_grad_enabled() or not rows.has_gradient)
        and numbers.shape == (rows.shape[rows.source.axis], *[1] * (rows.dim() - rows.source.axis - 1))
        and torch.promote_types(numbers.dtype, rows.dtype) == rows.dtype
        and is_eager()
    )


def _factor(numbers: torch.Tensor, dtype: torch.dtype) -> _Factor:
    owner = numbers if numbers._base is None else numbers._base  # noqa: SLF001  (of `weight.view(-1, 1)`)
    with torch.inference_mode(mode=False):
        values = numbers.detach().to(dtype, copy=True)
    is_whole = owner.numel() == numbers.numel() and owner.is_contiguous() and numbers.is_contiguous()
    is_owned = is_whole and owner.dtype == numbers.dtype and not owner.is_inference()
    return _Factor(values, owner, version_of(owner)) if is_owned else _Factor(values)


class _StandIn(torch.autograd.Function):
    """Makes `SourceRows` or `EdgeRows`, whose gradient is that of the tensor."""

    @staticmethod
    @override
    def forward(
        ctx: Any, kind: type[SourceRows], source: _Source, factor: torch.Tensor | None, rows: torch.Tensor
    ) -> torch.Tensor:
        ctx.axis, ctx.shape = source.axis, rows.shape
        index = source.ends if kind is EdgeRows else None
        ctx.save_for_backward(index, factor)
        shape = [*rows.shape]
        if index is not None:
            shape[source.axis] = len(index)
        make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001
        made: torch.Tensor = make(kind, shape, dtype=rows.dtype, device=rows.device)
        return made

    @staticmethod
    @override
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        index, factor = ctx.saved_tensors
        if factor is not None:
            gradient = gradient * factor
        if index is not None:
            gradient = gradient.new_zeros(ctx.shape).index_add(ctx.axis, index, gradient)
        return None, None, None, gradient


def _stand_in(kind: type[SourceRows], source: _Source, factor: _Factor | None) -> Any:
    values = None if factor is None else factor.values
    unmade: Any = _StandIn.apply(kind, source, values, source.rows)  # type: ignore[no-untyped-call]
    unmade.source = source
    return unmade


def _edge_rows(source: _Source, factor: _Factor | None, parent: EdgeRows | None) -> EdgeRows:
    rows: EdgeRows = _stand_in(EdgeRows, source, factor)
    rows.factor, rows.has_gradient, rows.parent, rows.products = factor, rows.requires_grad, parent, []
    return rows


def _order(edges: torch.Tensor, part: GraphPart) -> ChosenEdges:
    """Return the edges by target; made once for the part's, for a normalisation's of it, and for equal ones."""
    sizes, known = (part.num_owned, part.num_owned + part.num_halo), kept_edges(edges, part)
    made = made_of(known)
    if sizes not in made:
        made[sizes] = order_edges(known.numpy(), *sizes)
    chosen: ChosenEdges = made[sizes]
    return chosen


def known_edges(part: GraphPart) -> list[torch.Tensor]:
    """Return the part's edges, and those with the loops of a normalisation, which its cache has."""
    made = (tensor for entry in part.cache.values() for tensor in entry.outputs)
    return [part.edge_index, *(one for one in made if one.dtype == torch.int64 and one.dim() == 2)]  # noqa: PLR2004


def kept_edges(edges: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return a tensor of equal edges that stays: one that is known, or a copy. `made_of` it is found again."""
    if (known := next((one for one in known_edges(part) if is_same(edges, one)), None)) is not None:
        return known
    kept: deque[tuple[torch.Tensor, Any]]
    kept = made_of(part.edge_index).setdefault("others", deque(maxlen=_KEPT))
    for other, version in kept:
        if version == version_of(other) and other.shape == edges.shape and torch.equal(other, edges):
            return other
    with torch.inference_mode(mode=False):  # an inference tensor has no version
        own = edges.detach().clone()
    kept.append((own, version_of(own)))
    return own


def _operator(chosen: ChosenEdges, factor: _Factor | None, rows: torch.Tensor, *, is_mean: bool) -> Neighbours:
    """Return the sum or mean over edges, made once for each tensor of weights."""
    made: dict[Any, Any] = chosen.made
    key, dtype = (is_mean, rows.dtype), OPERATIONS.dtype(rows)
    if factor is not None:
        every = chosen.made.setdefault("weights", WeakIdKeyDictionary())
        owner = factor.owner
        made = {} if owner is None or version_of(owner) != factor.version else made_of(owner, every)
    if key not in made:
        values: NDArray[Any] = np.empty(0, dtype)
        if factor is not None:
            values = factor.values.to(rows.dtype).numpy().reshape(-1)
            values = values if chosen.places is None else values[chosen.places]
        made[key] = Neighbours(chosen.edges, dtype, OPERATIONS.pool(), values, mean=is_mean)
    operator: Neighbours = made[key]
    return operator


_HOOKED = ("propagate", "message", "aggregate", "edge_update")
_HOOKS = [f"_{step}_forward_{when}hooks" for step in _HOOKED for when in ("pre_", "")]
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_of_pyg(layer: MessagePassing, step: str) -> bool:
    """Return whether `propagate` or `edge_updater` is PyG's own, which PyG writes anew for each class."""
    kind = vars(type(layer))
    written = kind.get(f"_jinja_{step}")
    return written is not None and kind.get(step) is written is not kind[f"_orig_{step}"] and step not in vars(layer)


def aggregates_as_written(layer: MessagePassing, *kinds: type[Aggregation]) -> bool:
    """Return whether the layer aggregates by one of *kinds*, and no function of the user's looks at its steps."""
    return (
        type(layer.aggr_module) in kinds
        and is_untouched(layer.aggr_module)
        and not layer.explain
        and not any(getattr(layer, name) for name in _HOOKS)
    )


def is_untouched(module: torch.nn.Module) -> bool:
    """Return whether a module has no forward and no hook of the user's."""
    return "forward" not in vars(module) and not any(getattr(module, name) for name in _MODULE_HOOKS)
