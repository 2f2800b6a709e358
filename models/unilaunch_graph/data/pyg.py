"""Convert a graph of PyTorch Geometric to the folder of a graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from loguru import logger
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.files import EDGE_VALUES, SPLIT
from unilaunch_graph.data.graph_folder import Folder, Split, as_array, on_host, write_graph

_PYG = ("edge_index", "x", "y", *EDGE_VALUES, *SPLIT)


def from_pyg(data: Any, folder: Folder, *, split: Split = None, overwrite: bool = False) -> Path:
    """Write a `torch_geometric.data.Data`: x, edge_index, y, edge_weight, edge_attr, edge_type, masks, if it has them.

    Edges may be a sparse matrix whose rows are targets: a sparse tensor as *edge_index*, or *adj_t*.

    Further tensors and numpy arrays with a row for each node or edge become `part.node_arrays` and `part.edge_arrays`.

    Args:
        data: The graph. `edge_attr` of one dimension becomes one column. *y* of shape (num_nodes, 1) and whole numbers
            become classes; nodes beyond the rows of *y* have no label. If `to_homogeneous()` has made the graph, the
            features of a type of nodes that has none, NaN, become 0.
        folder: Where the folder is written.
        split: The split in place of masks, as of `from_scipy`: split=dataset.get_idx_split() of the OGB.
        overwrite: Whether to replace a folder that holds another graph.

    Raises:
        InputError: The graph is heterogeneous, has no edges, or has several splits; or as `from_scipy`.
    """
    if hasattr(data, "edge_types"):
        raise InputError("from_pyg: heterogeneous data has several kinds of nodes or edges: give data.to_homogeneous()")
    if isinstance(data, Sequence):
        raise InputError("from_pyg: expected one graph, found several: give dataset[0]")
    arrays: dict[str, Any] = {name: on_host(getattr(data, name, None)) for name in _PYG}
    arrays |= _edges(data, arrays["edge_index"])
    arrays |= {name: as_array(name, arrays[name]) for name in ("edge_attr", *SPLIT) if arrays[name] is not None}
    if (features := arrays["edge_attr"]) is not None and features.ndim == 1:
        arrays["edge_attr"] = features[:, None]
    if (mask := arrays["train_mask"]) is not None and mask.ndim > 1:
        raise InputError(
            f"from_pyg: train_mask has {mask.shape[1]} splits: choose one, as in data.train_mask = "
            "data.train_mask[:, 0], and the same of val_mask and test_mask"
        )
    num_nodes = _count_nodes(data)
    of_nodes, of_edges = _further(data, num_nodes, arrays["edge_index"].shape[-1])
    if "node_type" in of_nodes and isinstance(arrays["x"], np.ndarray):
        arrays["x"] = _filled(arrays["x"], of_nodes["node_type"])
    if isinstance(arrays["y"], np.ndarray) and len(arrays["y"]) < num_nodes:
        arrays["y"] = _lengthened(arrays["y"], num_nodes)
    return write_graph(
        folder, arrays, num_nodes=num_nodes, node_arrays=of_nodes, edge_arrays=of_edges, split=split,
        overwrite=overwrite,
    )  # fmt: skip


def _edges(data: Any, edges: Any) -> dict[str, Any]:
    """Return the ends of the edges, of a matrix also the weights: its rows are targets, as PyG's layers take it."""
    if edges is None and (matrix := getattr(data, "adj_t", None)) is not None:
        torch_sparse = getattr(matrix, "to_torch_sparse_coo_tensor", None)
        edges = on_host(torch_sparse() if torch_sparse else matrix)
    if edges is None:
        raise InputError("from_pyg: the data has neither edge_index nor adj_t")
    if not sp.issparse(edges):
        return {"edge_index": edges}
    weights = edges.data
    return {"edge_index": np.stack((edges.col, edges.row)), "edge_weight": None if (weights == 1).all() else weights}


def _count_nodes(data: Any) -> int:
    """Return the number of nodes; PyG takes it from the edges, with a warning, where only *y* tells it."""
    given = data.to_dict()
    told = next((given[name] for name in ("x", "y") if given.get(name) is not None), None)
    return int(data.num_nodes) if told is None or "num_nodes" in given else len(told)


def _further(data: Any, num_nodes: int, num_edges: int) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the further arrays of the nodes and of the edges, by name, told apart as PyG does it."""
    nodes: dict[str, NDArray[Any]] = {}
    edges: dict[str, NDArray[Any]] = {}
    left_out = []
    for name, value in data.to_dict().items():
        if name in _PYG or name in {"num_nodes", "adj_t"}:
            continue
        array = on_host(value)
        count = len(array) if isinstance(array, np.ndarray) and array.ndim and name.isidentifier() else -1
        if count == num_edges and ("edge" in name or count != num_nodes):
            edges[name] = array
        elif count == num_nodes:
            nodes[name] = array
        else:
            left_out.append(name)
    if left_out:
        logger.info("from_pyg: left out, no array of the nodes or edges: {}", ", ".join(left_out))
    return nodes, edges


def _filled(x: NDArray[Any], types: NDArray[Any]) -> NDArray[Any]:
    """Return features with 0 in place of the NaN of each type of nodes that has no features."""
    if x.dtype.kind != "f" or x.ndim != 2 or types.shape != x.shape[:1]:  # noqa: PLR2004  (nodes and columns)
        return x
    rows = np.isnan(x).all(axis=1)
    without = [kind for kind in np.unique(types[rows]).tolist() if rows[types == kind].all()]
    if not without:
        return x
    rows = np.isin(types, without)
    logger.warning(
        "from_pyg: the {} nodes of the types {} have no features: they are 0; give them some before to_homogeneous(), "
        "or learn them: torch.nn.Embedding(part.num_nodes, width)(part.owned)", int(rows.sum()), without,
    )  # fmt: skip
    return np.where(rows[:, None], np.zeros((), x.dtype), x)


def _lengthened(y: NDArray[Any], num_nodes: int) -> NDArray[Any]:
    """Return labels with unknown ones for the nodes at the end."""
    unknown = {"f": np.nan, "i": -1}.get(y.dtype.kind)
    if unknown is None or (y.dtype.kind == "i" and y.ndim > 1 and y.shape[1] > 1):
        return y  # which `write_graph` refuses: such labels cannot be unknown
    logger.warning("from_pyg: y has {} rows, of {} nodes: the last ones have no label", len(y), num_nodes)
    return np.concatenate((y, np.full((num_nodes - len(y), *y.shape[1:]), unknown, y.dtype)))
