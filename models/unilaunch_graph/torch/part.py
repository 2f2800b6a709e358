"""One rank's part of a graph, as tensors of PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, FloatType, Ids
from unilaunch_graph.network.part import PartFields, fields_of
from unilaunch_graph.partition.in_edges import merge_in_edges
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.ranks import Ranks

#: The edge_index of each part in use, by its id.
_EDGES: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The rows that this rank sends in a halo exchange, and how many it receives.

    Attributes:
        rows: For each receiver, the owned rows that are halo rows there; within one receiver no row twice. int64
        every: All of them, one receiver after the other. (num_sent,) int64
        send_counts: Rows to each rank. (world_size,)
        receive_counts: Halo rows of each owner. (world_size,)
    """

    rows: tuple[torch.Tensor, ...]
    every: torch.Tensor
    send_counts: list[int]
    receive_counts: list[int]


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that do not change from step to step, with their halo.

    Attributes:
        rows: The owned rows, and how often they had been written then: torch counts that.
        whole: The same with the halo's rows, and how often they had been written.
    """

    rows: tuple[torch.Tensor, int]
    whole: tuple[torch.Tensor, int]

    def is_of(self, rows: torch.Tensor) -> bool:
        """Return whether these are *rows*, and neither tensor has been written to."""
        return self.rows[0] is rows and all(tensor._version == count for tensor, count in (self.rows, self.whole))  # noqa: SLF001  (torch has no other name for it)


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart(PartFields[torch.Tensor, torch.Tensor, Ranks]):
    """One rank's part of a graph as tensors: the attributes are those of `PartFields`."""

    plan: SendPlan = field(repr=False)
    #: The cache of `halo` for *x*, which seldom changes.
    kept: dict[str, "Kept"] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.ranks.device

    def masked(self, rows: torch.Tensor, mask: Callable[[Ids, FloatType], Floats]) -> torch.Tensor:
        """Return *rows* times the array that *mask* computes from the owned nodes' ids and a type."""
        array = mask(self.owned.cpu().numpy(), np.dtype(np.float64 if rows.dtype == torch.float64 else np.float32))
        return rows * torch.from_numpy(array).to(rows.device, rows.dtype)


def make_part(part: Part, ranks: Ranks) -> GraphPart:
    """Return the part's arrays as tensors on the device of *ranks*. All ranks must call this.

    Args:
        part: The arrays.
        ranks: The other ranks.
    """

    def tensor(array: NDArray[Any]) -> torch.Tensor:
        return torch.tensor(np.ascontiguousarray(array), device=ranks.device)  # a copy of the mapped file

    edges = merge_in_edges(part)
    is_weighted = ranks.all_reduce(tensor(np.array([len(edges.weights)]))).item() > 0
    every, counts = tensor(part.send_rows.astype(np.int64)), part.send_counts.tolist()
    made = GraphPart(
        **fields_of(part, ranks, edges, tensor, is_weighted=is_weighted),
        owned=tensor(part.owned),
        arrays=part,
        plan=SendPlan(torch.split(every, counts), every, counts, part.halo_counts.tolist()),
    )
    _EDGES[id(made.edge_index)] = made.edge_index
    return made


def is_of_another_part(value: object, part: GraphPart) -> bool:
    """Return whether *value* is the edge_index of a part with other edges: its halo rows are not those of *part*."""
    edges = _EDGES.get(id(value))
    return edges is not None and edges is value and not torch.equal(edges, part.edge_index)
