"""A user's own graph in one .npz file, or in a folder of .npy files, which are mapped and not read into memory.

| array | what | shape |
|---|---|---|
| edge_index | ends of each edge, or ... | (2, num_edges) |
| indptr, indices | ... CSR of the edges | (num_nodes + 1,), (num_edges,) |
| x | dense features, or ... | (num_nodes, num_features) |
| x_indptr, x_indices, x_data, x_shape | ... CSR of the features | |
| y | class of each node, -1 where unknown | (num_nodes,) |
| train_mask, val_mask, test_mask | optional: the split, bool | (num_nodes,) |
"""

from collections.abc import Collection
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.csr import check_csr, check_range
from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.download import hash_file
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Features, Graph, csr_matrix, edge_matrix, symmetric
from unilaunch_graph.data.npz import Arrays, map_arrays, read_arrays
from unilaunch_graph.data.split import draw_split

#: To be raised when the same file is read into another graph.
VERSION = 1
Names = tuple[str, ...]
EDGE_INDEX: Names = ("edge_index",)
DENSE: Names = ("x",)
SPLIT = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}
#: In which arrays each thing can be given; the empty form stands for nothing at all.
EDGES: tuple[Names, ...] = (EDGE_INDEX, ("indptr", "indices"))
FEATURES: tuple[Names, ...] = (DENSE, ("x_indptr", "x_indices", "x_data", "x_shape"))
MASKS: tuple[Names, ...] = ((), tuple(SPLIT))
LABELS: tuple[Names, ...] = (("y",),)
#: Rows, or entries, that are looked at at a time.
_ROWS = 1 << 16
KNOWN = frozenset(chain(*EDGES, *FEATURES, *MASKS, *LABELS))


def open_file(request: Request) -> Dataset:
    """Find the file or the folder; a relative path is relative to the working folder.

    Raises:
        InputError: There is no such file.
    """
    path = Path(request.name).expanduser()
    hashes = {file.name: hash_file(file) for file in _members(path)} if path.is_dir() else {"sha256": hash_file(path)}
    identity: dict[str, str | int | float] = {
        "name": "npz", "version": VERSION, **hashes, "split_seed": request.split_seed
    }  # fmt: skip
    return Dataset(request.name, identity, partial(read_graph, path, request.split_seed))


def _members(folder: Path) -> list[Path]:
    """Return the files of *folder* that hold an array of a graph."""
    return [path for name in sorted(KNOWN) if (path := folder / f"{name}.npy").exists()]


def read_graph(path: Path, split_seed: int) -> Graph:
    """Read a graph, check it, make its edges undirected, and draw a split if it brings none.

    Args:
        path: The .npz file, or the folder; see above for its arrays. Features become float32.
        split_seed: Seed of the split that is drawn.

    Raises:
        InputError: The file is damaged, an array is missing, or a value in it cannot be; the text says which.
    """
    arrays = map_arrays(_members(path)) if path.is_dir() else read_arrays(path, KNOWN)
    try:
        return _graph(arrays, path, split_seed)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _graph(arrays: Arrays, path: Path, split_seed: int) -> Graph:
    edges, features, masks = _layout(arrays.values.keys())
    labels = _labels(arrays)
    indptr, indices, was_symmetric = symmetric(_edges(arrays, edges, len(labels)))
    if not was_symmetric:
        from loguru import logger

        logger.info("{}: directed edges were given: symmetrised", path)
    split = _split(arrays, labels) if masks else draw_split(labels, split_seed)
    return Graph(indptr, indices, _features(arrays, features, len(labels)), labels, split, int(labels.max()) + 1)


def _layout(names: Collection[str]) -> list[Names]:
    """Return in which arrays edges, features and split are given, or raise ValueError with all that is missing."""
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
    return found[:3]


def _labels(arrays: Arrays) -> NDArray[np.int64]:
    labels = arrays.whole("y", (None,))
    if not len(labels) or labels.max() < 0:
        raise ValueError("y has no node of known class")
    check_range(labels, len(labels), "y", start=-1)
    return labels


def _edges(arrays: Arrays, form: Names, num_nodes: int) -> sp.csr_array:
    """Return the edges as given. (num_nodes, num_nodes)"""
    if form == EDGE_INDEX:
        ends = arrays.integers("edge_index", (2, None))
        check_range(ends, num_nodes, "edge_index")
        return edge_matrix(ends[0], ends[1], num_nodes)
    indptr, indices = arrays.whole("indptr", (None,)), arrays.integers("indices", (None,))
    check_csr(indptr, indices, (num_nodes, num_nodes))
    columns = np.array(indices, np.int32)  # a copy, as of the rows: the matrix is put in order
    matrix = csr_matrix(np.ones(len(columns), np.bool_), columns, np.array(indptr), num_nodes)
    matrix.sum_duplicates()
    return matrix


def _features(arrays: Arrays, form: Names, num_nodes: int) -> Features:
    features = arrays.float32("x", (num_nodes, None)) if form == DENSE else _sparse_features(arrays, num_nodes)
    if not features.shape[1]:
        raise ValueError("x has no column")
    values = features.data if isinstance(features, sp.csr_array) else features
    if not all(np.isfinite(values[begin : begin + _ROWS]).all() for begin in range(0, len(values), _ROWS)):
        entries = sp.coo_array(features)
        at = np.flatnonzero(~np.isfinite(entries.data))[0]
        place = f"of node {entries.row[at]} is {entries.data[at]} in column {entries.col[at]}"
        raise ValueError(f"x {place}; features must be finite as float32")
    return features


def _sparse_features(arrays: Arrays, num_nodes: int) -> sp.csr_array:
    rows, columns = (int(size) for size in arrays.whole("x_shape", (2,)))
    if rows != num_nodes:
        raise ValueError(f"x_shape[0] is {rows}, but y has {num_nodes} nodes")
    check_range(np.array([0, columns]), 2**31, "x_shape")
    indptr, indices = arrays.whole("x_indptr", (None,)), arrays.whole("x_indices", (None,))
    check_csr(indptr, indices, (rows, columns), prefix="x_")
    matrix = sp.csr_array((arrays.float32("x_data", indices.shape), indices, indptr), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix


def _split(arrays: Arrays, labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    masks = [arrays.flags(name, labels.shape) for name in SPLIT]
    twice = np.flatnonzero(np.sum(masks, axis=0) > 1)
    if len(twice):
        raise ValueError(f"node {twice[0]} is in more than one of {', '.join(SPLIT)}")
    unknown = np.flatnonzero(np.any(masks, axis=0) & (labels < 0))
    if len(unknown):
        raise ValueError(f"node {unknown[0]} is in a mask, but its class is unknown: y[{unknown[0]}] is -1")
    if not masks[0].any():
        raise ValueError("train_mask has no node")
    return np.select(masks, list(SPLIT.values()), NONE).astype(np.uint8)
