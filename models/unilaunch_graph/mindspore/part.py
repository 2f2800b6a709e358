"""One rank's part of a graph, as tensors of MindSpore, and how it is loaded.

Without rows MindSpore's operators return undefined values or crash: `padded` adds a node to a part without edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import mindspore as ms
import numpy as np
import scipy.sparse as sp
from mindspore import Tensor, ops
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import InputError, SpecError
from unilaunch.interfaces.linear import Transposed
from unilaunch_graph.arrays import Ids
from unilaunch_graph.data.arrays import BFLOAT16
from unilaunch_graph.data.arrays import widened as widened_words
from unilaunch_graph.data.graph import NONE
from unilaunch_graph.dropout import mask_of_words, row_keys
from unilaunch_graph.exchange.gather import gather
from unilaunch_graph.exchange.halo import RowFetch, RowHalo
from unilaunch_graph.loading import load_part
from unilaunch_graph.mindspore.ranks import Collective, Ranks
from unilaunch_graph.network.part import PartFields, TensorTypes, fields_of, without_rows
from unilaunch_graph.operators.segments import SegmentSoftmax, SegmentSum
from unilaunch_graph.partition.part import InEdges, Part, edge_ids, merge_in_edges
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_mindspore.linear import Apply, Folded, OnHost, widened

#: The global id of the node that is added.
PADDING = -1


def padded(part: Part) -> Part:
    """Return *part* with at least one node and one edge.

    If it has no edge, it gets one node more, the last one: its global id is -1, its features are 0, it is in no split,
    and its only edge comes from itself. Other ranks do not have it, and its rows count in no loss, so gradients do not
    change.
    """
    if len(part.owned_indices) + len(part.halo_indices):
        return part
    row = np.zeros((1, part.num_features), part.features.dtype)
    is_sparse = isinstance(part.features, sp.csr_array)
    features: Any = sp.vstack((part.features, row), format="csr") if is_sparse else np.concatenate((part.features, row))
    labels: Any = np.concatenate((part.labels, _row(part.labels)))
    ends = (part.owned_indptr, part.halo_indptr)
    owned_indptr, halo_indptr = (np.append(end, end[-1] + more) for end, more in zip(ends, (1, 0), strict=True))
    return replace(
        part,
        owned=np.append(part.owned, PADDING),
        owned_indptr=owned_indptr,
        owned_indices=np.array([part.num_owned], np.int32),
        halo_indptr=halo_indptr,
        owned_edge_arrays={name: _row(array) for name, array in part.owned_edge_arrays.items()},
        strengths=np.append(part.strengths, 1.0),
        loops=np.append(part.loops, np.float32(1)),
        features=features,
        labels=labels,
        split=np.append(part.split, np.uint8(NONE)),
        node_arrays={name: np.concatenate((array, _row(array))) for name, array in part.node_arrays.items()},
    )


def _row(array: NDArray[Any]) -> NDArray[Any]:
    """Return one more row, of zeros."""
    return np.zeros((1, *array.shape[1:]), array.dtype)


class _OnlyPyNative(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """An operator that does nothing in PyNative mode, and that the compiler cannot infer."""

    def __init__(self) -> None:
        super().__init__("only_pynative")

    @override
    def __call__(self) -> None:
        """Do nothing."""

    @override
    def __infer__(self) -> None:
        raise SpecError(
            "ug.mindspore works in PyNative mode: call it outside of functions that ms.jit compiles, and leave out "
            "ms.set_context(mode=ms.GRAPH_MODE)"
        )


#: Called first in what a user may compile, outside of syntax that the compiler does not know.
only_pynative = _OnlyPyNative()


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart(PartFields[Tensor, Ids, Ranks]):
    """One rank's part of a graph as tensors: the attributes are those of `PartFields`.

    MindSpore's operators fail or return garbage without a row: a part without edges has one row more, the last one. Its
    id is -1, its only edge comes from itself, and no mask holds it; all else of the row and of the edge is 0.
    """

    operators: "Operators" = field(repr=False)

    @property
    @override
    def edge_ids(self) -> Tensor | None:
        ids = edge_ids(padded(self.arrays))
        return None if ids is None else Tensor(ids)

    @override
    def with_halo(self, rows: Tensor) -> Tensor:
        only_pynative()
        return self.ranks.apply(self.operators.halo, rows)

    @override
    def halo_summed(self, rows: Tensor) -> Tensor:
        only_pynative()
        return self.ranks.apply(self.operators.halo_sum, rows)

    @override
    def gathered(self, rows: Tensor) -> Tensor | None:
        only_pynative()
        sent = widened(rows) if rows.dtype == ms.bfloat16 else rows
        whole = gather(self.arrays, sent.asnumpy()[: self.arrays.num_owned], self.ranks)
        return None if whole is None else Tensor(whole).astype(rows.dtype)

    @override
    def fetched(self, rows: Tensor, nodes: Any) -> Tensor:
        only_pynative()
        ids = _ids_of(nodes)
        brought = Collective(Folded(RowFetch(self.operators.rows, self.directory.plan(ids.reshape(-1)))), self.ranks)
        found = self.ranks.apply(brought, rows)
        return found if ids.ndim == 1 else found.reshape((*ids.shape, *rows.shape[1:]))

    @override
    def masked(self, rows: Tensor, keys: tuple[int, int], probability: float) -> Tensor:
        words, dtype = row_keys(self.owned, keys), rows.asnumpy().dtype
        return rows * Tensor.from_numpy(mask_of_words(words, rows.shape, keys, probability, dtype))


def _ids_of(nodes: Any) -> NDArray[Any]:
    ids = nodes.asnumpy() if isinstance(nodes, Tensor) else np.asarray(nodes)
    if not ids.size:
        raise InputError("fetch: no nodes: MindSpore needs one or more: give any node, and leave it out of the loss")
    return ids


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a part.

    Attributes:
        edges: The part's edges on the host.
        rows: The exchange of rows.
        halo: From owned rows to owned and halo rows.
        halo_sum: The transpose of `halo`.
        segment_sum: From messages to their sums.
        segment_softmax: From scores to their shares.
        made: Cache of the layers' preparations of the edges.
    """

    edges: InEdges
    rows: RowHalo
    halo: Collective
    halo_sum: Collective
    segment_sum: Apply
    segment_softmax: SegmentSoftmax
    made: dict[Any, Any]


def make_part(part: Part, ranks: Ranks, dtype: Any = None) -> GraphPart:
    """Return the part's arrays as tensors. All ranks must call this.

    Args:
        part: The arrays.
        ranks: The other ranks.
        dtype: Of x, edge_weight, floating edge_attr, regression and multi-label labels: MindSpore's float16, float32,
            float64 or bfloat16; None: float32.

    Raises:
        SpecError: *dtype* is none of these.
        InputError: The features are sparse, and too large to be dense.
    """
    if dtype not in {None, ms.float16, ms.float32, ms.float64, ms.bfloat16}:
        raise SpecError(f"ug.load: dtype={dtype}: expected a type of floats, such as mindspore.float64")
    whole = padded(part)
    (ranks.whole if whole is part else ranks.padded).add((whole.num_nodes, whole.num_owned))
    edges = merge_in_edges(whole)
    num_weights = np.array([len(edges.weights)])
    ranks.collectives.all_reduce(num_weights)
    return GraphPart(
        **fields_of(whole, ranks, edges, _tensors_of(dtype or ms.float32), is_weighted=bool(num_weights[0])),
        owned=whole.owned,
        arrays=without_rows(part),
        operators=_operators(without_rows(whole), edges, ranks),
    )


def _tensor(array: NDArray[Any], dtype: Any = None) -> Tensor:
    if array.dtype == BFLOAT16:
        return Tensor(widened_words(array), ms.bfloat16)
    return Tensor(np.array(array, dtype))  # a copy, since files are mapped and read-only


def _refuse_sparse(matrix: sp.csr_array) -> NoReturn:
    rows, columns = matrix.shape
    raise InputError(
        f"x is sparse, {rows:,} rows of {columns:,} columns: {4 * rows * columns / 1e9:.1f} GB as dense rows, which "
        "MindSpore's layers take: give fewer columns, such as a truncated SVD's, or x.toarray() to the converter"
    )


def _tensors_of(dtype: Any) -> TensorTypes:
    def floats(array: NDArray[Any]) -> Tensor:
        if dtype == ms.bfloat16:
            return _tensor(array, np.float32).astype(dtype)
        return _tensor(array, ms.dtype_to_nptype(dtype))

    # MindSpore's cross entropy takes int32 alone.
    return TensorTypes(_tensor, floats, floats, partial(_tensor, dtype=np.int32), floats, _refuse_sparse)


def _operators(part: Part, edges: InEdges, ranks: Ranks) -> Operators:
    halo = RowHalo(part, ranks.collectives)
    return Operators(
        edges,
        halo,
        Collective(Folded(halo), ranks),
        Collective(Folded(Transposed(halo)), ranks),
        Apply(OnHost(Folded(SegmentSum(edges.indptr)))),
        SegmentSoftmax(edges.indptr),
        {},
    )


def load(name: str | Path, *, dtype: Any = None, **options: Any) -> GraphPart:
    """Return this rank's part of a graph, as tensors. All ranks must call this.

    Works in a script that any launcher has started: `unilaunch launch`, mpirun, torchrun, srun, or none (one rank).
    MindSpore computes on the CPU: it has no exchange of rows for other devices than Ascend. The ranks exchange rows
    over MPI where the launcher has wired MPI up, else over sockets.

    Args:
        name: A data set's name ("cora"), or the path of a graph file or folder.
        dtype: Of x, edge_weight, floating edge_attr, regression and multi-label labels: MindSpore's float16, float32,
            float64 or bfloat16; None: float32.
        **options: Fields of `unilaunch_graph.spec.DataSpec`: `data_dir`, `partition_dir`, `balance`, ...

    Raises:
        SpecError: An option is unknown or has a value that is not allowed, *dtype* is no type of floats, or MindSpore
            is in graph mode.
        PlacementError: MindSpore computes on another device already.
        PluginError: The numpy that is installed does not fit MindSpore.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    return make_part(*load_arrays(name, options), dtype)


def load_arrays(name: str | Path, options: Mapping[str, Any]) -> tuple[Part, Ranks]:
    """Return this rank's part as mapped arrays, and the ranks. All ranks must call this; as `load`."""
    if ms.get_context("mode") == ms.GRAPH_MODE:
        raise SpecError("ug.mindspore works in PyNative mode: call ms.set_context(mode=ms.PYNATIVE_MODE)")
    part, member = load_part(name, "cpu", options)

    def start() -> Ranks:
        MindSporeBackend().start(member.world, member.placement)
        return Ranks(member.world.rank, member.world.size, member.collectives())

    return part, Ranks.once(start)
