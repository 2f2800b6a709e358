"""Convert a graph of PyTorch Geometric to the folder of a graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.files import SPLIT
from unilaunch_graph.data.graph_folder import Folder, as_array, on_host, write_graph

_PYG = ("edge_index", "x", "y", "edge_weight", *SPLIT)
_OF_EDGES = ("edge_attr", "edge_type")


def from_pyg(data: Any, folder: Folder) -> Path:
    """Write a `torch_geometric.data.Data`: x, edge_index, and y, edge_weight, edge_attr and masks if it has them.

    Args:
        data: The graph. `edge_attr` of one dimension becomes one column, and `edge_type`, if there is one, its last
            column: `part.edge_attr[:, -1].long()`. *y* of shape (num_nodes, 1) and whole numbers become classes.
        folder: Where the folder is written.

    Raises:
        InputError: The graph is heterogeneous, has no edge_index, or has several splits; or as `from_scipy`.
    """
    if hasattr(data, "edge_types"):
        raise InputError("from_pyg: heterogeneous data has several kinds of nodes or edges: give data.to_homogeneous()")
    if isinstance(data, Sequence):
        raise InputError("from_pyg: expected one graph, found several: give dataset[0]")
    if getattr(data, "edge_index", None) is None:
        raise InputError("from_pyg: the data has no edge_index: leave out transforms that replace it (ToSparseTensor)")
    arrays: dict[str, Any] = {name: on_host(getattr(data, name, None)) for name in _PYG}
    arrays |= {name: as_array(name, arrays[name]) for name in SPLIT if arrays[name] is not None}
    arrays["edge_attr"], mask = _columns_of_edges(data), arrays["train_mask"]
    if mask is not None and mask.ndim > 1:
        raise InputError(
            f"from_pyg: train_mask has {mask.shape[1]} splits: choose one, as in data.train_mask = "
            "data.train_mask[:, 0], and the same of val_mask and test_mask"
        )
    return write_graph(folder, arrays)


def _columns_of_edges(data: Any) -> NDArray[Any] | None:
    """Return the features of the edges, and in the last column their types."""
    features, types = (
        None if (found := getattr(data, name, None)) is None else as_array(name, found) for name in _OF_EDGES
    )
    if features is not None and features.ndim == 1:
        features = features[:, None]
    if types is None:
        return features
    num_edges = np.shape(on_host(data.edge_index))[-1]
    if types.shape != (num_edges,) or types.dtype.kind not in "iu":
        raise InputError(
            f"from_pyg: edge_type is {types.dtype} of the shape {types.shape}: expected an integer for each of "
            f"{num_edges} edges"
        )
    column = types[:, None].astype(np.float32)
    if features is None:
        return column
    has_rows = features.shape[:-1] == (num_edges,)
    return np.hstack((features, column)) if has_rows else features  # which `write_graph` refuses
