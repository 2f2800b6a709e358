"""One rank's part of a graph, as tensors of MindSpore."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from unilaunch.linear import Transposed
from unilaunch_graph.arrays import Ids
from unilaunch_graph.dropout import mask_of
from unilaunch_graph.exchange.user_halo import RowHalo
from unilaunch_graph.mindspore.padding import padded
from unilaunch_graph.mindspore.ranks import Collective, Ranks
from unilaunch_graph.network.part import PartFields, fields_of
from unilaunch_graph.operators.segments import SegmentSoftmax, SegmentSum
from unilaunch_graph.partition.in_edges import InEdges, merge_in_edges
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import Apply, OnHost


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart(PartFields[Tensor, Ids, Ranks]):
    """One rank's part of a graph as tensors: the attributes are those of `PartFields`.

    MindSpore's operators fail or return garbage without a row: a part without edges has one row more, the last one. Its
    id is -1, its only edge comes from itself, and no mask holds it.
    """

    operators: "Operators" = field(repr=False)

    def masked(self, rows: Tensor, keys: tuple[int, int], probability: float) -> Tensor:
        """Return *rows* times the mask of the owned nodes; the arguments are those of `fill_mask`."""
        dtype = rows.asnumpy().dtype
        if dtype.kind in "biu":
            raise TypeError(f"dropout: rows are {rows.dtype}: expected floats")
        return rows * Tensor.from_numpy(mask_of(self.owned, rows.shape, keys, probability, dtype))


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a part.

    Attributes:
        edges: The part's edges on the host.
        halo: From owned rows to owned and halo rows.
        halo_sum: The transpose of `halo`.
        segment_sum: From messages to their sums.
        segment_softmax: From scores to their shares.
        made: Cache of the layers' preparations of the edges.
    """

    edges: InEdges
    halo: Collective
    halo_sum: Collective
    segment_sum: Apply
    segment_softmax: SegmentSoftmax
    made: dict[Any, Any]


def make_part(part: Part, ranks: Ranks) -> GraphPart:
    """Return the part's arrays as tensors. All ranks must call this.

    Args:
        part: The arrays.
        ranks: The other ranks.
    """
    whole = padded(part)
    (ranks.whole if whole is part else ranks.padded).add((whole.num_nodes, whole.num_owned))
    edges = merge_in_edges(whole)
    num_weights = np.array([len(edges.weights)])
    ranks.collectives.all_reduce(num_weights)
    return GraphPart(
        **fields_of(whole, ranks, edges, _tensor, is_weighted=bool(num_weights[0])),
        owned=whole.owned,
        arrays=part,
        operators=_operators(whole, edges, ranks),
    )


def _tensor(array: NDArray[Any]) -> Tensor:
    """Return a copy, since files are mapped and read-only: integers as int32, labels of 0 and 1 as float32."""
    return Tensor(array.astype({"int64": np.int32, "uint8": np.float32}.get(array.dtype.name, array.dtype)))


def _operators(part: Part, edges: InEdges, ranks: Ranks) -> Operators:
    halo = RowHalo(part, ranks.collectives)
    return Operators(
        edges,
        Collective(halo, ranks),
        Collective(Transposed(halo), ranks),
        Apply(OnHost(SegmentSum(edges.indptr))),
        SegmentSoftmax(edges.indptr),
        {},
    )
