"""What a call of a model is given on the small graph of a check: rows drawn from the real ones, as a tree of arguments.

Each argument is told by the part's own tensors, or by the number of its rows, and becomes a `_Stand`.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from unilaunch_graph.simulation import NotCheckedError, SmallGraph
from unilaunch_graph.torch.part import GraphPart, is_same

_NODE_FIELDS = ("x", "y", "train_mask", "val_mask", "test_mask")
_EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")
_PLAIN = str | int | float | GraphPart | torch.dtype | torch.device | None
#: Floats are varied by up to this share.
_VARIED = 0.1


class _Stand(NamedTuple):
    """What stands for one argument.

    Attributes:
        kind: "given": the argument itself, or a part or a number of rows in its place. "field": the field *rows* of the
            part. "nodes", "with halo", "edges": rows of these. "ends": the ends of the *chosen* edges. "whole": the
            same rows in each part. "data": a `Data`, of which *rows* has a stand for each value.
        rows: For the whole small graph.
        chosen: Which edges the rows are of; None: all.
        layout: The layout of the argument; *rows* are dense.
    """

    kind: str
    rows: Any = None
    chosen: torch.Tensor | None = None
    layout: torch.layout = torch.strided


class Inputs:
    """The arguments of one call, for any part of a small graph.

    Args:
        given: The arguments and the options of the real call: a tree of lists, dicts and `Data`.
        real: This rank's part.
        parameters: The parameters of the model.

    Raises:
        NotCheckedError: An argument cannot be simulated.
    """

    def __init__(self, given: Any, real: GraphPart, parameters: Sequence[torch.Tensor]) -> None:
        self.real, self.draw = real, np.random.default_rng(0)
        self.leaves, self.tree = pytree.tree_flatten(given)
        tensors = [value for value in _within(self.leaves) if isinstance(value, torch.Tensor)]
        fields = {name: getattr(real, name) for name in (*_NODE_FIELDS, *_EDGE_FIELDS)}
        fields = {name: rows for name, rows in fields.items() if rows is not None}
        widths = {size for rows in (*parameters, *tensors, *fields.values()) for size in rows.shape[1:]}
        self.small = SmallGraph.like(real.arrays, widths | {len(one) for one in parameters if one.dim()})
        self.num_nodes, self.num_edges = self.small.graph.num_nodes, len(self.small.graph.indices)
        self.lengths = self._lengths(tensors)
        self.stands = [self._stand(leaf) for leaf in self.leaves]
        self.fields = {
            name: self._rows(rows, "nodes" if name in _NODE_FIELDS else "edges") for name, rows in fields.items()
        }

    def on(self, part: GraphPart, dtype: torch.dtype) -> tuple[GraphPart, Any, list[torch.Tensor]]:
        """Return *part* with rows, the arguments and the options, and the rows of nodes, whose gradients are wanted.

        Args:
            part: A part of the small graph.
            dtype: The type of floats.
        """
        fields = {name: self._value(None, stand, part, dtype) for name, stand in self.fields.items()}
        part = replace(part, num_features=self.real.num_features, edge_arrays={}, node_arrays={}, **fields)
        pairs = list(zip(self.leaves, self.stands, strict=True))
        values = [self._value(leaf, stand, part, dtype) for leaf, stand in pairs]
        stood = [
            *zip(values, self.stands, strict=True),
            *((fields[name], stand) for name, stand in self.fields.items()),
        ]
        rows = [rows.requires_grad_() for value, stand in stood for rows in _rows_of_nodes(value, stand)]
        return part, pytree.tree_unflatten(values, self.tree), rows

    def _lengths(self, tensors: Sequence[torch.Tensor]) -> dict[int, tuple[str, torch.Tensor | None]]:
        """Return what rows of each number are of."""
        real, num_edges = self.real, self.real.edge_index.shape[1]
        lengths: dict[int, tuple[str, torch.Tensor | None]] = {
            real.num_nodes: ("whole", None), num_edges: ("edges", None),
            real.num_owned + real.num_halo: ("with halo", None),
            real.num_owned: ("nodes", None) if real.num_owned != num_edges else ("nodes or edges", None),
        }  # fmt: skip
        for ends in filter(self._are_some_edges, tensors):
            chosen = self.draw.random(self.num_edges) < max(ends.shape[1] / max(1, num_edges), _VARIED)
            lengths.setdefault(ends.shape[1], ("edges", torch.from_numpy(chosen)))
        return lengths

    def _stand(self, leaf: Any) -> _Stand:
        if isinstance(leaf, Data):
            return _Stand("data", {name: self._stand(value) for name, value in leaf.to_dict().items()})
        if not isinstance(leaf, torch.Tensor):
            if isinstance(leaf, _PLAIN):
                return _Stand("given")
            raise NotCheckedError(f"it is called with {type(leaf).__name__}")
        if name := self._field(leaf):
            return _Stand("field", name)
        if self._are_some_edges(leaf):
            return _Stand("ends", chosen=self.lengths[leaf.shape[1]][1])
        if _are_pairs(leaf):
            raise NotCheckedError("it is called with other edges than part.edge_index")
        return self._rows(leaf, *self.lengths.get(len(leaf) if leaf.dim() else -1, ("whole", None)))

    def _field(self, leaf: torch.Tensor) -> str:
        """Return which field of the part a tensor is; "" if it is none."""
        for name in ("edge_index", "owned", *_NODE_FIELDS, *_EDGE_FIELDS):
            if is_same(leaf, getattr(self.real, name)):
                return name
        is_equal = (
            _are_pairs(leaf) and leaf.shape == self.real.edge_index.shape and (leaf == self.real.edge_index).all()
        )
        return "edge_index" if is_equal else ""

    def _are_some_edges(self, leaf: torch.Tensor) -> bool:
        """Return whether these are edges into owned nodes, from halo nodes too; pairs of owned nodes may be others."""
        if not _are_pairs(leaf) or not leaf.numel() or leaf is self.real.edge_index:
            return False
        source, target = leaf.amax(1).tolist()
        num_owned = self.real.num_owned
        return bool(leaf.min() >= 0 and target < num_owned <= source < num_owned + self.real.num_halo)

    def _rows(self, given: torch.Tensor, kind: str, chosen: torch.Tensor | None = None) -> _Stand:
        """Return rows for the whole small graph, drawn from the given ones; floats are varied."""
        if kind == "nodes or edges":
            raise NotCheckedError("this part has as many edges as nodes")
        rows = given.detach()
        if is_drawn := kind != "whole" or (rows.dim() > 0 and len(rows) == self.real.num_nodes):
            rows = rows if len(rows) else torch.ones((1, *rows.shape[1:]), dtype=rows.dtype)
            rows = rows if rows.layout is torch.strided else rows.to_sparse_coo()  # type: ignore[no-untyped-call]
            places = self.draw.integers(0, len(rows), self.num_edges if kind == "edges" else self.num_nodes)
            rows = rows.index_select(0, torch.from_numpy(places).to(rows.device))
        rows = rows.to("cpu", copy=True) if rows.layout is torch.strided else rows.to_dense().cpu()
        if is_drawn and rows.is_floating_point():
            rows = rows.double() * (1 + _VARIED * torch.from_numpy(self.draw.random(rows.shape)))
        return _Stand(kind, rows, chosen, given.layout)

    def _value(self, leaf: Any, stand: _Stand, part: GraphPart, dtype: torch.dtype) -> Any:
        """Return an argument for a part."""
        if stand.kind == "given":
            return part if isinstance(leaf, GraphPart) else self._number(leaf, part)
        if stand.kind == "data":
            data = copy.copy(leaf)
            for name, value in leaf.to_dict().items():
                data[name] = self._value(value, stand.rows[name], part, dtype)
            return data
        if stand.kind == "field":
            return part.owned % self.real.num_nodes if stand.rows == "owned" else getattr(part, stand.rows)
        edges = edges_of(part)
        chosen = slice(None) if stand.chosen is None else stand.chosen[edges]
        if stand.kind == "ends":
            return part.edge_index[:, chosen]
        of_kind = {"nodes": part.owned, "with halo": nodes_of(part), "edges": edges[chosen]}
        rows = stand.rows[of_kind.get(stand.kind, slice(None))].clone()
        rows = rows.to(dtype) if rows.is_floating_point() else rows
        return rows if stand.layout is torch.strided else rows.to_sparse(layout=stand.layout)

    def _number(self, leaf: Any, part: GraphPart) -> Any:
        """Return the part's number of rows in place of the real part's."""
        real = self.real
        numbers = {
            real.num_nodes: part.num_nodes, real.num_owned + real.num_halo: part.num_owned + part.num_halo,
            real.num_owned: part.num_owned,
        }  # fmt: skip
        return numbers.get(leaf, leaf) if type(leaf) is int else leaf


def nodes_of(part: GraphPart) -> torch.Tensor:
    """Return the global ids of the rows with halo. (num_owned + num_halo,) int64"""
    return torch.cat([part.owned, torch.from_numpy(part.arrays.halo.astype(np.int64))])


def edges_of(part: GraphPart) -> torch.Tensor:
    """Return the number of each edge in the small graph. (num_edges,) int64"""
    ids: Any = part.edge_ids
    return ids  # type: ignore[no-any-return]


def _within(leaves: Sequence[Any]) -> Iterator[Any]:
    """Yield the arguments, and those in PyG's `Data`."""
    for leaf in leaves:
        yield from leaf.to_dict().values() if isinstance(leaf, Data) else [leaf]


def _are_pairs(leaf: torch.Tensor) -> bool:
    return leaf.dim() == 2 and len(leaf) == 2 and leaf.layout is torch.strided and not leaf.is_floating_point()  # noqa: PLR2004


def _rows_of_nodes(value: Any, stand: _Stand) -> list[torch.Tensor]:
    """Return the dense floats among an argument that have a row for each owned node."""
    if stand.kind == "data":
        inner: Mapping[str, _Stand] = stand.rows
        return [rows for name, one in inner.items() for rows in _rows_of_nodes(value[name], one)]
    is_wanted = stand.kind == "nodes" and value.is_floating_point() and value.layout is torch.strided
    return [value] if is_wanted else []
