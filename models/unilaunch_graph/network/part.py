"""One rank's part of a graph: the fields that it has in both frameworks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.data.labels import Task
from unilaunch_graph.exchange.halo import Directory
from unilaunch_graph.partition.part import InEdges, Part

Tensor = TypeVar("Tensor")
Indices = TypeVar("Indices")
RanksOf = TypeVar("RanksOf")


#: Bytes of the whole graph's features up to which a sparse matrix becomes dense rows, which every layer takes.
LARGEST_DENSE = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class PartFields(Generic[Tensor, Indices, RanksOf]):
    """One rank's part of a graph: the nodes that it owns, and every edge into them.

    A row below *num_owned* is an owned node; the rows from *num_owned* on are halo nodes, which other ranks own.
    Floats are of the framework's default type (`torch.get_default_dtype()` when `load` is called; MindSpore: float32),
    unless `load` is given a *dtype*.
    *edge_index* and classes are int64 in PyTorch and int32 in MindSpore.

    Attributes:
        x: Features of the owned nodes; None: there are none. In PyTorch a sparse CSR tensor if the user gave a sparse
            matrix whose dense form would take more than `LARGEST_DENSE`. (num_owned, num_features) floats
        edge_index: Source row and target row of each edge, sorted by target; targets are owned nodes. (2, E)
        edge_weight: Weight of each edge; None: each is 1. (E,) floats
        edge_attr: Features of each edge; None: there are none. (E, k) floats; integers and bool keep their type
        edge_type: Type of each edge; None: there is none. (E,) integers of their own type
        edge_arrays: Further arrays of the edges, by name, each of its own type. (E, ...)
        node_arrays: Further arrays of the owned nodes, by name, each of its own type. (num_owned, ...)
        y: Labels of the owned nodes. Classes (num_owned,), -1 where unknown; multi-label (num_owned, C) 0 or 1, uint8
            in PyTorch and float32 in MindSpore; regression floats, NaN where unknown
        train_mask: The owned nodes to train on. (num_owned,) bool
        val_mask: Those to validate on. (num_owned,) bool
        test_mask: Those to test on. (num_owned,) bool
        num_train: Training nodes of the whole graph.
        num_val: Validation nodes of the whole graph.
        num_test: Test nodes of the whole graph.
        num_nodes: Nodes of the whole graph.
        num_owned: Rows of the owned nodes.
        num_halo: Sources of edges into them that other ranks own.
        num_classes: Classes of the whole graph.
        num_features: Columns of *x*; 0: there are none.
        owned: Global ids of the owned nodes, in MindSpore a numpy array. (num_owned,) int64
        rank: Index of this rank.
        world_size: Number of ranks.
        ranks: The other ranks.
        arrays: The part's arrays on the host, without its dense features.
        directory: Who owns each node.
    """

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    edge_attr: Tensor | None
    edge_type: Tensor | None
    edge_arrays: Mapping[str, Tensor]
    node_arrays: Mapping[str, Tensor]
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_train: int
    num_val: int
    num_test: int
    num_nodes: int
    num_owned: int
    num_halo: int
    num_classes: int
    num_features: int
    owned: Indices
    rank: int
    world_size: int
    ranks: RanksOf = field(repr=False)
    arrays: Part = field(repr=False)
    directory: Directory = field(repr=False)

    @property
    def edge_ids(self) -> Tensor | None:
        """Position of each edge of *edge_index* in the user's list of edges; None: they are not the user's. (E,) int64

        The edges of `sbm`, `cora`, `citeseer` and `pubmed` are made symmetric, and have none. Made at each access.
        """
        raise NotImplementedError

    def with_halo(self, rows: Tensor) -> Tensor:
        """Return what `network.functions.halo` does, of rows that fit."""
        raise NotImplementedError

    def halo_summed(self, rows: Tensor) -> Tensor:
        """Return what `network.functions.sum_halo` does, of rows that fit."""
        raise NotImplementedError

    def gathered(self, rows: Tensor) -> Tensor | None:
        """Return what `network.functions.gather` does, of rows that fit."""
        raise NotImplementedError

    def fetched(self, rows: Tensor, nodes: Any) -> Tensor:
        """Return what `network.functions.fetch` does, of rows that fit."""
        raise NotImplementedError

    def masked(self, rows: Tensor, keys: tuple[int, int], probability: float) -> Tensor:
        """Return *rows*, which are floats, times the mask of the owned nodes; the arguments are `fill_mask`'s."""
        raise NotImplementedError

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the part itself: a copy of a network shares it, and the ranks' communication cannot be copied."""
        return self


class TensorTypes(NamedTuple):
    """Functions that return an array as a framework's tensor, which is a copy but for *features*.

    Attributes:
        exact: In the array's own type.
        floats: In the framework's default type of floats.
        features: Of the nodes' dense features, likewise; it may use the array's memory.
        indices: Of nodes and classes, in the type that the framework's operators take.
        flags: Of 0 and 1 for each of several labels, likewise.
        sparse: Of a sparse matrix, with floats; raises InputError in a framework without sparse tensors.
    """

    exact: Callable[[NDArray[Any]], Any]
    floats: Callable[[NDArray[Any]], Any]
    features: Callable[[NDArray[Any]], Any]
    indices: Callable[[NDArray[Any]], Any]
    flags: Callable[[NDArray[Any]], Any]
    sparse: Callable[[sp.csr_array], Any]


def fields_of(part: Part, ranks: Any, edges: InEdges, tensors: TensorTypes, *, is_weighted: bool) -> dict[str, Any]:
    """Return the fields of a part but for *owned* and *arrays*.

    Args:
        part: The arrays.
        ranks: The ranks of the job, of the framework's class.
        edges: The edges into the part's nodes.
        tensors: The framework's tensors.
        is_weighted: Whether the graph has weights; a part without edges holds none, even if the graph has them.

    Raises:
        InputError: The features are sparse, too large to be dense, and the framework has no sparse tensors.
    """
    shared = ("num_nodes", "num_owned", "num_halo", "num_classes", "num_features")
    masks = {f"{name}_mask": part.split == use for name, use in (("train", TRAIN), ("val", VAL), ("test", TEST))}
    further = {name: tensors.exact(array) for name, array in edges.arrays.items() if name != "edge_attr"}
    edge_attr, labels = edges.arrays.get("edge_attr"), _LABELS[part.task]
    return {
        "x": _features_of_nodes(part, tensors) if part.num_features else None,
        "edge_index": tensors.indices(edges.ends),
        "edge_weight": tensors.floats(_weights(edges)) if is_weighted else None,
        "edge_attr": None if edge_attr is None else _features_of_edges(edge_attr, tensors),
        "edge_type": further.pop("edge_type", None),
        "edge_arrays": further,
        "node_arrays": {name: tensors.exact(array) for name, array in part.node_arrays.items()},
        "y": getattr(tensors, labels)(part.labels),
        **{name: tensors.exact(mask) for name, mask in masks.items()},
        **dict(zip(("num_train", "num_val", "num_test"), part.split_sizes, strict=True)),
        **{name: getattr(part, name) for name in shared},
        "rank": ranks.rank,
        "world_size": ranks.size,
        "directory": Directory(without_rows(part), ranks),
        "ranks": ranks,
    }


#: Of `TensorTypes`.
_LABELS = {Task.CLASSES: "indices", Task.MULTILABEL: "flags", Task.REGRESSION: "floats"}


def _features_of_nodes(part: Part, tensors: TensorTypes) -> Any:
    """Return the features, sparse or dense on all ranks alike."""
    if not isinstance(part.features, sp.csr_array):
        return tensors.features(part.features)
    if dense_size(part) > LARGEST_DENSE:
        return tensors.sparse(part.features)
    return tensors.features(part.features.toarray())


def without_rows(part: Part) -> Part:
    """Return *part* without its dense features, which are large, and of which the tensor *x* is enough."""
    if isinstance(part.features, sp.csr_array):
        return part
    return replace(part, features=np.empty((0, part.num_features), part.features.dtype))


def dense_size(part: Part) -> int:
    """Return the bytes of the whole graph's features in float32, if they were dense."""
    return 4 * part.num_nodes * part.num_features


def _features_of_edges(features: NDArray[Any], tensors: TensorTypes) -> Any:
    return (tensors.floats if features.dtype.kind == "f" else tensors.exact)(features)


def _weights(edges: InEdges) -> NDArray[np.float32]:
    return edges.weights if len(edges.weights) else np.ones(edges.ends.shape[1], np.float32)
