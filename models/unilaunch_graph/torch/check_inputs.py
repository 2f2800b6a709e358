"""What a model is given on the small graph of a check: rows drawn from the real ones, in place of each tensor.

A tensor among the arguments, or that the model holds, is told by the part's own tensors, or by the number of its rows.
It becomes a `_Stand`. `copy.deepcopy` of the arguments and the model then puts the stands' rows in their places.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch_geometric.data import Data

from unilaunch_graph.comparison import NotCheckedError, RowIds
from unilaunch_graph.simulation import EDGE_FIELDS, NODE_FIELDS, RowDraw, SmallGraph
from unilaunch_graph.torch.part import GraphPart, is_flip, is_same
from unilaunch_graph.torch.ranks import Ranks

_PLAIN = str | int | float | np.generic | GraphPart | torch.dtype | torch.device | None
#: Of the edges that an argument has: at least so many.
_FEWEST = 0.1


class _Stand(NamedTuple):
    """What stands for one tensor.

    Attributes:
        kind: "field": the field *rows* of the part. "nodes", "with halo", "edges": rows of these. "ends": the ends of
            the *chosen* edges. "flip": the ends of all, exchanged. "whole": the same rows in each part.
        rows: For the whole small graph.
        chosen: Which edges the rows are of; None: all.
        layout: The layout of the tensor; *rows* are dense.
    """

    kind: str
    rows: Any = None
    chosen: torch.Tensor | None = None
    layout: torch.layout = torch.strided


class OnPart(NamedTuple):
    """What a model is given on one part of the small graph.

    Attributes:
        part: The part.
        given: The arguments and the options, not yet copied by *memo*.
        memo: Of `copy.deepcopy`: what stands in place of tensors and of the real part, by their ids.
        rows: The floats among them with a row for each owned node; gradients of these are wanted.
        ids: Which rows of the small graph the part's are.
    """

    part: GraphPart
    given: Any
    memo: dict[int, Any]
    rows: list[torch.Tensor]
    ids: RowIds


class Inputs:
    """The arguments of one call, and the tensors that the model holds, for any part of a small graph.

    Args:
        real: This rank's part.
        given: The arguments and the options of the real call: a tree of lists, dicts and `Data`.
        held: Tensors that the model holds, which may have rows of the graph.
        parameters: The parameters of the model.

    Raises:
        NotCheckedError: An argument cannot be simulated.
    """

    def __init__(
        self, real: GraphPart, given: Any, held: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
    ) -> None:
        self.real, self.given = real, given
        tensors = list(_given_tensors(given))
        known = {name: getattr(real, name) for name in (*NODE_FIELDS, *EDGE_FIELDS)}
        known = {name: rows for name, rows in known.items() if rows is not None}
        weights = {size for one in parameters for size in one.shape}
        widths = weights | {size for rows in (*tensors, *held, *known.values()) for size in rows.shape[1:]}
        self.small = SmallGraph.like(real.arrays, widths)
        self.draw = RowDraw(self.small, widths)
        self.lengths = self._lengths([*tensors, *held])
        held = [one for one in held if self._are_rows(one) and len(one) not in weights]
        self.stands = [(one, self._stand(one)) for one in {id(one): one for one in (*tensors, *held)}.values()]
        self.fields = {
            name: self._rows(rows, "nodes" if name in NODE_FIELDS else "edges") for name, rows in known.items()
        }

    def on(self, part: GraphPart, dtype: torch.dtype) -> OnPart:
        """Return what the model is given on a part of the small graph.

        Args:
            part: The part, without rows.
            dtype: The type of floats.
        """
        made = {name: self._value(stand, part, dtype) for name, stand in self.fields.items()}
        part = replace(part, num_features=self.real.num_features, edge_arrays={}, node_arrays={}, **made)
        stood = [(self._value(stand, part, dtype), stand) for _, stand in self.stands]
        both = [*stood, *((made[name], stand) for name, stand in self.fields.items())]
        rows = [rows.requires_grad_() for rows, stand in both if _are_differentiable(rows, stand)]
        nodes, edges = nodes_of(part).numpy(), edges_of(part).numpy()
        of_kind = {"nodes": part.owned.numpy(), "edges": edges}
        masked = [
            of_kind[stand.kind][rows.numpy()] for rows, stand in both
            if stand.kind in of_kind and rows.dtype == torch.bool and rows.dim() == 1 and stand.chosen is None
        ]  # fmt: skip
        pairs = ((getattr(self.real, one.name), getattr(part, one.name)) for one in fields(part))
        memo = {id(real): small for real, small in pairs if isinstance(real, torch.Tensor | Ranks)}
        memo |= {id(self.real): part} | {id(one): rows for (one, _), (rows, _) in zip(self.stands, stood, strict=True)}
        given = pytree.tree_map(lambda leaf: self._renumbered(leaf, part), self.given)
        return OnPart(part, given, memo, rows, RowIds(part.owned.numpy(), nodes, edges, masked))

    def _lengths(self, tensors: Sequence[torch.Tensor]) -> dict[int, tuple[str, torch.Tensor | None]]:
        """Return what rows of each number are of."""
        real, num_edges = self.real, self.real.edge_index.shape[1]
        lengths: dict[int, tuple[str, torch.Tensor | None]] = {
            real.num_nodes: ("whole", None), num_edges: ("edges", None),
            real.num_owned + real.num_halo: ("with halo", None),
            real.num_owned: ("nodes", None) if real.num_owned != num_edges else ("nodes or edges", None),
        }  # fmt: skip
        for ends in filter(self._are_some_edges, tensors):
            share = max(ends.shape[1] / max(1, num_edges), _FEWEST)
            chosen = self.draw.random.random(self.draw.lengths["edges"]) < share
            lengths.setdefault(ends.shape[1], ("edges", torch.from_numpy(chosen)))
        return lengths

    def _are_rows(self, held: torch.Tensor) -> bool:
        """Return whether a tensor that the model holds has rows of the graph; what has not, keeps its numbers."""
        if self._field(held) or self._are_some_edges(held) or (_are_pairs(held) and is_flip(held, self.real)):
            return True
        return held.dim() > 0 and len(held) in self.lengths and not _are_pairs(held)

    def _stand(self, tensor: torch.Tensor) -> _Stand:
        if name := self._field(tensor):
            return _Stand("field", name)
        if self._are_some_edges(tensor):
            return _Stand("ends", chosen=self.lengths[tensor.shape[1]][1])
        if _are_pairs(tensor) and is_flip(tensor, self.real):
            return _Stand("flip")
        if _are_pairs(tensor):
            raise NotCheckedError("it is called with other edges than part.edge_index")
        return self._rows(tensor, *self.lengths.get(len(tensor) if tensor.dim() else -1, ("whole", None)))

    def _field(self, tensor: torch.Tensor) -> str:
        """Return which field of the part a tensor is; "" if it is none."""
        for name in ("edge_index", "owned", *NODE_FIELDS, *EDGE_FIELDS):
            if is_same(tensor, getattr(self.real, name)):
                return name
        edges = self.real.edge_index
        may_be = _are_pairs(tensor) and tensor.shape == edges.shape and tensor.device == edges.device
        return "edge_index" if may_be and (tensor == edges).all() else ""

    def _are_some_edges(self, tensor: torch.Tensor) -> bool:
        """Return whether these are edges into owned nodes, from halo nodes too; pairs of owned nodes may be others."""
        if not _are_pairs(tensor) or not tensor.numel() or tensor is self.real.edge_index:
            return False
        source, target = tensor.amax(1).tolist()
        num_owned = self.real.num_owned
        return bool(tensor.min() >= 0 and target < num_owned <= source < num_owned + self.real.num_halo)

    def _rows(self, given: torch.Tensor, kind: str, chosen: torch.Tensor | None = None) -> _Stand:
        """Return rows for the whole small graph, drawn from the given ones."""
        if kind == "nodes or edges":
            raise NotCheckedError("this part has as many edges as nodes")
        rows = given.detach()
        if is_drawn := kind != "whole" or (rows.dim() > 0 and len(rows) == self.real.num_nodes):
            rows = rows if len(rows) else torch.ones((1, *rows.shape[1:]), dtype=rows.dtype)
            rows = rows if rows.layout is torch.strided else rows.to_sparse_coo()  # type: ignore[no-untyped-call]
            places = self.draw.places(len(rows), "edges" if kind == "edges" else "nodes")
            rows = rows.index_select(0, torch.from_numpy(places).to(rows.device))
        rows = rows.to("cpu", copy=True) if rows.layout is torch.strided else rows.to_dense().cpu()
        if is_drawn:
            rows = rows.double() if rows.is_floating_point() else rows
            rows = torch.from_numpy(self.draw.varied(rows.numpy()))
        return _Stand(kind, rows, chosen, given.layout)

    def _value(self, stand: _Stand, part: GraphPart, dtype: torch.dtype) -> Any:
        """Return what stands for a tensor on a part."""
        if stand.kind == "field":
            return part.owned % self.real.num_nodes if stand.rows == "owned" else getattr(part, stand.rows)
        edges = edges_of(part)
        chosen = slice(None) if stand.chosen is None else stand.chosen[edges]
        if stand.kind == "flip":
            return part.edge_index.flip(0)
        if stand.kind == "ends":
            return part.edge_index[:, chosen]
        of_kind = {"nodes": part.owned, "with halo": nodes_of(part), "edges": edges[chosen]}
        rows = stand.rows[of_kind.get(stand.kind, slice(None))].clone()
        rows = rows.to(dtype) if rows.is_floating_point() else rows
        return rows if stand.layout is torch.strided else rows.to_sparse(layout=stand.layout)

    def _renumbered(self, leaf: Any, part: GraphPart) -> Any:
        """Return an argument with the part's numbers of rows in place of the real part's."""
        real = self.real
        numbers = {
            real.num_nodes: part.num_nodes, real.num_owned + real.num_halo: part.num_owned + part.num_halo,
            real.num_owned: part.num_owned,
        }  # fmt: skip
        if isinstance(leaf, Data):
            leaf = copy.copy(leaf)
            for name, value in leaf.to_dict().items():
                leaf[name] = self._renumbered(value, part)
        return numbers.get(leaf, leaf) if type(leaf) is int else leaf


def leaves_of(values: Any) -> Iterator[Any]:
    """Yield what is in a tree of lists, dicts and PyG's `Data`."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, Data):
            yield from leaves_of(leaf.to_dict())
        else:
            yield leaf


def nodes_of(part: GraphPart) -> torch.Tensor:
    """Return the global ids of the rows with halo. (num_owned + num_halo,) int64"""
    return torch.cat([part.owned, torch.from_numpy(part.arrays.halo.astype(np.int64))])


def edges_of(part: GraphPart) -> torch.Tensor:
    """Return the number of each edge in the small graph. (num_edges,) int64"""
    ids: Any = part.edge_ids
    return ids  # type: ignore[no-any-return]


def _given_tensors(given: Any) -> Iterator[torch.Tensor]:
    for leaf in leaves_of(given):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif not isinstance(leaf, _PLAIN):
            raise NotCheckedError(f"it is called with {type(leaf).__name__}")


def _are_pairs(tensor: torch.Tensor) -> bool:
    is_matrix = tensor.dim() == 2 and len(tensor) == 2 and tensor.layout is torch.strided  # noqa: PLR2004
    return is_matrix and not tensor.is_floating_point()


def _are_differentiable(rows: torch.Tensor, stand: _Stand) -> bool:
    """Return whether these are dense floats with a row for each owned node."""
    return stand.kind == "nodes" and rows.is_floating_point() and rows.layout is torch.strided
