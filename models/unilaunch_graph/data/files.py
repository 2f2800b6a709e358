"""A user's own graph in one .npz file, or in a folder of .npy files, which are mapped and not read into memory.

| array | what | shape |
|---|---|---|
| edge_index | source and target of each edge, or ... | (2, num_edges) |
| indptr, indices | ... CSR of the edges: row = source, column = target | (num_nodes + 1,), (num_edges,) |
| edge_weight | optional: weight of each edge | (num_edges,) |
| edge_attr | optional: features of each edge | (num_edges, k) |
| edge_type | optional: type of each edge | (num_edges,) whole numbers |
| edge.NAME, node.NAME | optional: any further array of the edges, of the nodes | (num_edges, ...), (num_nodes, ...) |
| x | optional: dense features, or ... | (num_nodes, num_features) |
| x_indptr, x_indices, x_data, x_shape | ... CSR of the features | |
| num_nodes | where neither x, y nor indptr tells it | () |
| y | optional: class of each node, -1 (or NaN) where unknown, or ... | (num_nodes,) whole numbers or bool |
| | ... 0 or 1 for each of several labels, or ... | (num_nodes, num_classes) whole numbers or bool |
| | ... what to predict, NaN where unknown | (num_nodes,) or (num_nodes, num_columns) floats |
| train_mask, val_mask, test_mask | optional: the split, bool; without y it is empty | (num_nodes,) |

Each array keeps its type; whole numbers in x and edge_weight are refused where float32 would round them.
"""

from collections.abc import Collection
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.arrays import (
    Arrays,
    check_csr,
    check_floats,
    check_range,
    map_arrays,
    read_arrays,
    refuse_number,
    strange_to_float32,
)
from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.edges import Edges, NamedArrays, csr_matrix, edges_as_given, edges_of_rows
from unilaunch_graph.data.graph import NONE, Features, Graph
from unilaunch_graph.data.hashes import hash_file
from unilaunch_graph.data.labels import Labels, blank_labels, count_classes, is_known, read_labels
from unilaunch_graph.data.split import draw_split, split_of

#: Raise it when a change reads the same file into another graph.
VERSION = 3
Names = tuple[str, ...]
EDGE_INDEX: Names = ("edge_index",)
DENSE: Names = ("x",)
SPLIT: Names = ("train_mask", "val_mask", "test_mask")
#: The arrays in which each input can be given; the empty form means that it is not given.
EDGES: tuple[Names, ...] = (EDGE_INDEX, ("indptr", "indices"))
FEATURES: tuple[Names, ...] = ((), DENSE, ("x_indptr", "x_indices", "x_data", "x_shape"))
MASKS: tuple[Names, ...] = ((), SPLIT)
LABELS: tuple[Names, ...] = ((), ("y",))
EDGE_VALUES: Names = ("edge_weight", "edge_attr", "edge_type")
NUM_NODES = "num_nodes"
KNOWN = frozenset(chain(*EDGES, *FEATURES, *MASKS, *LABELS, EDGE_VALUES, (NUM_NODES,)))
#: Before the names of further arrays.
OF_EDGES, OF_NODES = "edge.", "node."


def open_file(request: Request) -> Dataset:
    """Find the file or the folder; a relative path is relative to the working folder.

    Raises:
        InputError: There is no such file.
    """
    path = Path(request.name).expanduser()
    hashes = {file.name: hash_file(file) for file in members(path)} if path.is_dir() else {"sha256": hash_file(path)}
    identity: dict[str, str | int | float] = {
        "name": "npz", "version": VERSION, **hashes, "split_seed": request.split_seed
    }  # fmt: skip
    folder = path.resolve() if path.is_dir() else None
    return Dataset(request.name, identity, partial(read_graph, path, request.split_seed), folder=folder)


def members(folder: Path) -> list[Path]:
    """Return the files of *folder* that hold an array of a graph."""
    return sorted(path for path in folder.glob("*.npy") if is_name(path.stem))


def is_name(name: str) -> bool:
    """Return whether an array of a graph has this name."""
    further = (name.removeprefix(prefix) for prefix in (OF_EDGES, OF_NODES) if name.startswith(prefix))
    return name in KNOWN or any(map(str.isidentifier, further))


def read_graph(path: Path, split_seed: int) -> Graph:
    """Read a graph with its edges as given, check it, and draw a split if it brings none.

    Args:
        path: The .npz file, or the folder; see above for its arrays.
        split_seed: Seed of the split that is drawn.

    Raises:
        InputError: The file is damaged, an array is missing, or a value is not allowed; the text names it.
    """
    arrays = map_arrays(members(path)) if path.is_dir() else read_arrays(path, is_name)
    try:
        return _graph(arrays, split_seed, path)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def check_arrays(arrays: NamedArrays, path: Path) -> int:
    """Check that arrays are a graph, before they are written to *path*, and return its number of nodes.

    Raises:
        InputError: They are not a graph; the text names the wrong array.
    """
    try:
        return _graph(Arrays(arrays), 0, path).num_nodes
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def count_nodes(arrays: Arrays) -> int:
    """Return the number of nodes, from the first array that tells it.

    Raises:
        ValueError: None does.
    """
    given = arrays.values
    for name in ("y", *DENSE):
        if name in given and given[name].ndim:
            return len(given[name])
    if "x_shape" in given:
        return int(arrays.whole("x_shape", (2,))[0])
    if "indptr" in given:
        return len(arrays.whole("indptr", (None,))) - 1
    if NUM_NODES not in given:
        raise ValueError(f"has no x, y or {NUM_NODES}: how many nodes there are is not known")
    return int(arrays.whole(NUM_NODES, ()))


def _graph(arrays: Arrays, split_seed: int, path: Path) -> Graph:
    edges, form, masks, has_labels = _layout(arrays.values.keys())
    known = read_labels(arrays) if has_labels else None
    features = _features(arrays, form, None if known is None else len(known)) if form else None
    if not (count := count_nodes(arrays)):
        raise ValueError("has no node")
    if NUM_NODES in arrays.values and (said := int(arrays.whole(NUM_NODES, ()))) != count:
        raise ValueError(f"{NUM_NODES} is {said}, but there are {count} nodes")
    labels = blank_labels(count) if known is None else known
    given = _edges(arrays, edges, count)
    is_drawn = not (masks and has_labels)
    if split_seed and not is_drawn:
        raise ValueError(f"has its own split, so split_seed={split_seed} draws none: leave it out")
    split = draw_split(labels, split_seed) if is_drawn else _split(arrays, labels)
    graph = Graph(
        features=np.zeros((count, 0), np.float32) if features is None else features,
        labels=labels,
        split=split,
        num_classes=count_classes(labels),
        node_arrays=_further(arrays, OF_NODES, count),
        **given._asdict(),
    )
    if is_drawn and not split_seed and split.any():
        _warn_of_drawn_split(graph, path)
    return graph


def _warn_of_drawn_split(graph: Graph, path: Path) -> None:
    from loguru import logger

    logger.warning(
        "{}: has no train_mask, val_mask and test_mask: a split is drawn, of {} nodes to train on, {} to validate with "
        "and {} to test with; if the data has one beside it, convert it with split=, such as "
        "split=dataset.get_idx_split()", path, *graph.split_sizes,
    )  # fmt: skip


def _layout(names: Collection[str]) -> list[Names]:
    """Return the arrays of edges, features, split and labels, or raise ValueError with all that are missing."""
    found, faults = [], []
    for forms in (EDGES, FEATURES, MASKS, LABELS):
        begun = [form for form in forms if not {*form}.isdisjoint(names)] or [forms[0]]
        missing = [name for name in begun[0] if name not in names]
        found.append(begun[0])
        if len(begun) > 1:
            faults.append(f"has both {begun[0][0]} and {begun[1][0]}: give one of them")
        elif missing:
            faults.append(f"has no {' and no '.join(missing)}")
    if faults:
        raise ValueError("; ".join(faults))
    return found


def _edges(arrays: Arrays, form: Names, num_nodes: int) -> Edges:
    """Return the edges by target, otherwise as given."""
    check_range(np.array([num_nodes]), 2**31, "number of nodes ")
    if form == EDGE_INDEX:
        if (given := arrays.values["edge_index"]).ndim == 2 and given.shape[0] != 2 == given.shape[1]:  # noqa: PLR2004
            raise ValueError(f"edge_index must have shape (2, any), not {given.shape}: give its transpose")
        ends = arrays.integers("edge_index", (2, None))
        check_range(ends, num_nodes, "edge_index")
        return edges_as_given(ends[0], ends[1], num_nodes, *_edge_values(arrays, ends.shape[1]))
    indptr, indices = arrays.whole("indptr", (None,)), arrays.integers("indices", (None,))
    check_csr(indptr, indices, (num_nodes, num_nodes))
    return edges_of_rows(indptr, indices, *_edge_values(arrays, len(indices)))


def _edge_values(arrays: Arrays, num_edges: int) -> tuple[NDArray[np.float32] | None, NamedArrays]:
    """Return the weights of the edges, None if there are none, and their further arrays."""
    weights, further = None, _further(arrays, OF_EDGES, num_edges)
    if "edge_weight" in arrays.values:
        weights = arrays.numbers("edge_weight", (num_edges,))
        check_floats(weights, "edge_weight", "edge")
        weights = weights.astype(np.float32, copy=False)
    if "edge_attr" in arrays.values:
        further["edge_attr"] = features = arrays.numbers("edge_attr", (num_edges, None))
        if features.dtype.kind == "f":
            check_floats(features, "edge_attr", "edge")
    if "edge_type" in arrays.values:
        further["edge_type"] = arrays.integers("edge_type", (num_edges,))
    return weights, further


def _further(arrays: Arrays, prefix: str, count: int) -> dict[str, NDArray[Any]]:
    """Return the further arrays of the edges or of the nodes, by the names that the user gave them."""
    names = [name for name in arrays.values if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.rows(name, count) for name in names}


def _features(arrays: Arrays, form: Names, num_nodes: int | None) -> Features:
    features = arrays.numbers("x", (num_nodes, None)) if form == DENSE else _sparse_features(arrays, num_nodes)
    if 0 in features.shape:
        raise ValueError(f"x has no {'column' if features.shape[0] else 'row'}")
    if not isinstance(features, sp.csr_array):
        check_floats(features, "x", "node")
        return features
    wrong = np.flatnonzero(strange_to_float32(features.data))
    if len(wrong):
        node = np.searchsorted(features.indptr, wrong[0], side="right") - 1
        refuse_number(features.data[wrong[0]], f"x of node {node}", "node", features.indices[wrong[0]])
    return features


def _sparse_features(arrays: Arrays, num_nodes: int | None) -> sp.csr_array:
    rows, columns = (int(size) for size in arrays.whole("x_shape", (2,)))
    if num_nodes not in {None, rows}:
        raise ValueError(f"x_shape[0] is {rows}, but y has {num_nodes} nodes")
    check_range(np.array([0, columns]), 2**31, "x_shape")
    indptr, indices = arrays.whole("x_indptr", (None,)), arrays.integers("x_indices", (None,))
    check_csr(indptr, indices, (rows, columns), prefix="x_")
    values = arrays.numbers("x_data", indices.shape)
    matrix = csr_matrix(values, indices.astype(np.int32, copy=False), indptr, columns)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # the values are the user's own, or those of a file
        matrix.sum_duplicates()
    return matrix


def _split(arrays: Arrays, labels: Labels) -> NDArray[np.uint8]:
    split = split_of({name: arrays.flags(name, (len(labels),)) for name in SPLIT})
    unknown = np.flatnonzero((split != NONE) & ~is_known(labels))
    if len(unknown):
        raise ValueError(
            f"node {unknown[0]} is in a mask, but its label is unknown: y[{unknown[0]}] is {labels[unknown[0]]}"
        )
    return split
