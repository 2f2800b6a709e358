"""Convert a user's graph (PyG, networkx, SciPy, arrays or tables) to the folder of a graph.

Each function writes a folder that `unilaunch run --dataset` takes and `unilaunch_graph.load` reads, and returns its
path. The folder is written aside and renamed; one that holds another graph is refused, or replaced with
`overwrite=True`; one that holds this graph already stays, so a script may convert its data in each run, on all ranks.
Edges keep their directions, loops and duplicates: a model that needs a symmetric graph makes it so when it reads the
folder, and says so. Arrays keep their types; objects, text and dates are refused by name.

All take the same arguments: *split* is the split that stands beside the data, in place of masks: a mapping of "train",
"valid" (or "val") and "test" to numbers of nodes or to masks, as `dataset.get_idx_split()` of the OGB returns it, or
three shares of the nodes with a label, as in (0.6, 0.2, 0.2). Without masks and *split*, a split is drawn when the
graph is read, and a warning says so. *node_arrays* and *edge_arrays* are further arrays by name, with a row for each
node or edge: `part.node_arrays` and `part.edge_arrays` have them.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from loguru import logger
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.arrays import strange_to_float32
from unilaunch_graph.data.files import EDGE_VALUES, SPLIT
from unilaunch_graph.data.graph_folder import Folder, Further, Split, as_array, on_host, write_graph
from unilaunch_graph.data.tables import (
    SIGNED_AND_NOT,
    as_numbers,
    as_whole,
    is_table,
    number_of_each,
    read_table,
    text_of,
)


def from_scipy(  # noqa: PLR0913  (the arrays of a graph, by name)
    adjacency: Any,
    folder: Folder,
    *,
    x: Any = None,
    y: Any = None,
    edge_attr: Any = None,
    edge_type: Any = None,
    node_arrays: Further = None,
    edge_arrays: Further = None,
    train_mask: Any = None,
    val_mask: Any = None,
    test_mask: Any = None,
    split: Split = None,
    overwrite: bool = False,
) -> Path:
    """Write a sparse matrix: entry (i, j) is the weight of the edge from node i to node j.

    Args:
        adjacency: A sparse matrix or array of SciPy. (num_nodes, num_nodes). Where all its entries are 1 or True, the
            graph has no weights.
        folder: Where the folder is written.
        x: Features of the nodes, dense or sparse; None: none. (num_nodes, num_features)
        y: Labels: classes, -1 or NaN where unknown, or text, "" where unknown: (num_nodes,); 0 and 1: (num_nodes,
            num_classes); values, NaN where unknown: (num_nodes,) or (num_nodes, num_columns). None: no label is
            known; such a graph is for predictions.
        edge_attr: Features of the edges, in the order of `scipy.sparse.csr_array(adjacency)`. (num_edges, k)
        edge_type: Types of the edges, in that order: whole numbers. (num_edges,)
        node_arrays: Further arrays of the nodes by name. (num_nodes, ...)
        edge_arrays: Further arrays of the edges by name, in that order. (num_edges, ...)
        train_mask: Nodes to train on, bool. (num_nodes,)
        val_mask: Nodes to validate with; None: none.
        test_mask: Nodes to test with; None: none.
        split: The split in place of masks; see above.
        overwrite: Whether to replace a folder that holds another graph.

    Raises:
        InputError: The folder holds another graph, or the arrays do not fit together; the text names the array.
    """
    try:
        matrix = sp.csr_array(on_host(adjacency))
    except (ValueError, TypeError) as error:
        raise InputError(f"from_scipy: the adjacency is no sparse matrix of numbers: {error}") from None
    if matrix.shape != 2 * matrix.shape[:1]:
        raise InputError(f"from_scipy: the adjacency has the shape {matrix.shape}; expected as many rows as columns")
    arrays = {
        "indptr": matrix.indptr,
        "indices": matrix.indices,
        "edge_weight": None if (matrix.data == 1).all() else matrix.data,
        "edge_attr": edge_attr,
        "edge_type": edge_type,
    }
    masks = {"train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
    return write_graph(
        folder, {**arrays, "x": x, "y": y, **masks}, node_arrays=node_arrays, edge_arrays=edge_arrays, split=split,
        overwrite=overwrite,
    )  # fmt: skip


def from_networkx(  # noqa: PLR0913  (what is taken from it, by name)
    graph: Any,
    folder: Folder,
    *,
    x: Any = "x",
    y: Any = "y",
    weight: str = "weight",
    edge_attr: Sequence[str] | str = (),
    node_arrays: Sequence[str] = (),
    edge_arrays: Sequence[str] = (),
    split: Split = None,
    overwrite: bool = False,
) -> Path:
    """Write a graph of networkx; each edge of an undirected one is written in both directions.

    The order of the nodes is that of `graph.nodes`; their names are kept in the folder (`read_names`). Node attributes
    train_mask, val_mask and test_mask are the split, if a node has one of them.

    Args:
        graph: Graph, DiGraph, MultiGraph or MultiDiGraph.
        folder: Where the folder is written.
        x: The node attribute that holds a node's features; or their array, in the order of the nodes. None: none.
        y: The node attribute that holds a node's label; or their array. Text becomes classes. None: no label is known.
        weight: The edge attribute that holds an edge's weight, 1 where an edge has none; if no edge has one, the graph
            has no weights.
        edge_attr: The edge attributes that become the columns of the edges' features, or the name of one.
        node_arrays: The node attributes that become arrays of their own.
        edge_arrays: The edge attributes that become arrays of their own.
        split: The split in place of masks, by the places of the nodes in that order; see above.
        overwrite: Whether to replace a folder that holds another graph.

    Raises:
        InputError: A node or an edge has no such attribute; or as `from_scipy`.
    """
    names = list(graph.nodes)
    place = {name: number for number, name in enumerate(names)}
    edges = [(place[a], place[b], values) for a, b, values in graph.edges(data=True)]
    if not graph.is_directed():
        edges += [(b, a, values) for a, b, values in edges if a != b]
    arrays: dict[str, Any] = {
        "edge_index": np.array([[a, b] for a, b, _ in edges], np.int64).reshape(-1, 2).T,
        "x": _node_values(graph, x) if isinstance(x, str) else x,
        "y": _node_values(graph, y) if isinstance(y, str) else y,
    }
    if any(weight in values for *_, values in edges):
        arrays["edge_weight"] = _stacked(
            [on_host(values.get(weight, 1)) for *_, values in edges], f"the edges' {weight!r}"
        )

    def of_edges(chosen: Sequence[str]) -> dict[str, NDArray[Any]]:
        return {
            key: _stacked(
                [_value(values, key, f"the edge from {names[a]!r} to {names[b]!r}") for a, b, values in edges],
                f"the edges' {key!r}",
            )
            for key in chosen
        }

    arrays["edge_attr"] = _side_by_side(of_edges([edge_attr] if isinstance(edge_attr, str) else edge_attr), "edge")
    for mask in SPLIT:
        if any(mask in values for _, values in graph.nodes(data=True)):
            arrays[mask] = np.array([_flag(name, mask, values) for name, values in graph.nodes(data=True)])
    numbers = range(len(names))
    return write_graph(
        folder, arrays, numbers if names == [*numbers] else [*map(_plain, names)], split=split, overwrite=overwrite,
        node_arrays={key: _node_values(graph, key) for key in node_arrays}, edge_arrays=of_edges(edge_arrays),
    )  # fmt: skip


def _side_by_side(columns: Mapping[str, NDArray[Any]], row: str) -> NDArray[Any] | None:
    """Return columns as one array; None: there are none.

    Raises:
        InputError: Whole numbers stand beside fractions, and float32 would round them.
    """
    if not columns:
        return None
    whole = np.column_stack([*columns.values()])
    for name, column in columns.items() if whole.dtype.kind == "f" else ():
        if column.dtype.kind in "iu" and (strange := strange_to_float32(column)).any():
            raise InputError(
                f"{name} of {row} {np.argwhere(strange)[0][0]} is {column[strange][0]}, which float32 rounds: give ids "
                f"and times as an array of their own ({row}_arrays=[{name!r}]), or write {column[strange][0]}.0"
            )
    return whole


def _node_values(graph: Any, attribute: str) -> Any:
    values = [_value(values, attribute, f"node {name!r}") for name, values in graph.nodes(data=True)]
    if any(isinstance(value, str) for value in values):
        return values  # labels, of which some may be unknown
    return _stacked(values, f"the nodes' {attribute!r}")


def _flag(name: Any, mask: str, values: Mapping[str, Any]) -> bool:
    value = values.get(mask, False)
    if not isinstance(value, bool | np.bool_ | Integral) or value not in {0, 1}:
        raise InputError(f"from_networkx: node {name!r} has {mask}={value!r}: expected True or False")
    return bool(value)


def _stacked(values: Sequence[Any], what: str) -> NDArray[Any]:
    try:
        return np.array(values)
    except ValueError:
        raise InputError(f"from_networkx: {what} are not all of one length") from None


def _value(values: Mapping[str, Any], attribute: str, owner: str) -> Any:
    if attribute not in values:
        raise InputError(f"from_networkx: {owner} has no attribute {attribute!r}; it has {', '.join(values) or 'none'}")
    return on_host(values[attribute])


def _plain(name: Any) -> str | int:
    """Return a node's name as JSON can hold it."""
    return int(name) if isinstance(name, Integral) and not isinstance(name, bool) else str(name)


def from_edges(  # noqa: PLR0913  (the arrays of a graph, by name)
    edges: Any,
    folder: Folder,
    *,
    nodes: Any = None,
    x: Any = None,
    y: Any = None,
    num_nodes: int | None = None,
    edge_weight: Any = None,
    edge_attr: Any = None,
    edge_type: Any = None,
    node_arrays: Further | Sequence[str] = None,
    edge_arrays: Further | Sequence[str] = None,
    train_mask: Any = None,
    val_mask: Any = None,
    test_mask: Any = None,
    split: Split = None,
    overwrite: bool = False,
) -> Path:
    """Write a graph from lists of edges, in arrays or in tables (.csv, .csv.gz, .parquet; these need pyarrow).

    Args:
        edges: Sources and targets: (2, num_edges); or the path of a table with the columns source, target, and weight
            if edges have weights.
        folder: Where the folder is written.
        nodes: Names of the nodes, in the order of the rows of *x*, *y* and the masks, if sources and targets are names
            and not the numbers 0 to num_nodes - 1. Or the path of a table with the column node (the name), and y and
            train_mask, val_mask and test_mask if it has labels and a split; its rows are the nodes.
        x: Features: (num_nodes, num_features), dense or sparse; None: none. With a table of nodes: the names of its
            columns of features; None: all columns that are no other thing, nor the index of a data frame.
        y: Labels, as of `from_scipy`; not with a table of nodes.
        num_nodes: Number of nodes, where there are neither x nor y nor names.
        edge_weight: Weights: (num_edges,); not with a table of edges.
        edge_attr: Features of the edges: (num_edges, k). With a table of edges: the names of its columns.
        edge_type: Types of the edges: whole numbers (num_edges,).
        node_arrays: Further arrays of the nodes by name: (num_nodes, ...). With a table of nodes: the names of its
            columns.
        edge_arrays: Further arrays of the edges by name: (num_edges, ...). With a table of edges: the names of its
            columns.
        train_mask: As of `from_scipy`, and the other masks; not with a table of nodes.
        val_mask: The same.
        test_mask: The same.
        split: The split in place of masks, by the places of the nodes; see above.
        overwrite: Whether to replace a folder that holds another graph.

    Raises:
        InputError: A table cannot be read or has no such column, or an edge names no node; or as `from_scipy`.
        PluginError: A table is given, and pyarrow is not installed.
    """
    arrays = {"x": x, "y": y, "train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
    names = None if nodes is None else as_array("nodes", nodes)
    if is_table(nodes):
        _refuse_arrays("nodes", "x", x)
        _refuse_arrays("nodes", "node_arrays", node_arrays)
        _refuse_beside_table("nodes", {name: array for name, array in arrays.items() if name != "x"})
        names, arrays, node_arrays = _read_nodes(Path(nodes), x, node_arrays)
    values, are_read = {"edge_weight": edge_weight, "edge_attr": edge_attr}, is_table(edges)
    if are_read:
        _refuse_arrays("edges", "edge_attr", edge_attr)
        _refuse_arrays("edges", "edge_arrays", edge_arrays)
        _refuse_beside_table("edges", {"edge_weight": edge_weight})
        edges, values, edge_arrays = _read_edges(Path(edges), edge_attr, edge_arrays)
    ends = as_array("edges", edges)
    if are_read and (names is None or names.dtype.kind in "iu"):
        ends = as_whole(ends)
    names = names if names is None else text_of("nodes", names)
    if not ends.size:
        ends = ends.astype(np.int64)  # an empty list is one of floats
    elif names is not None:
        ends = number_of_each(text_of("edges", ends), names, are_read=are_read)
    elif ends.dtype.kind in "UO":
        raise InputError(
            "from_edges: the ends of edges are names: give nodes=, the names in the order of the rows of x"
        )
    return write_graph(
        folder, {"edge_index": ends, **values, "edge_type": edge_type, **arrays},
        None if names is None else [*map(_plain, names.tolist())], num_nodes=num_nodes, node_arrays=node_arrays,
        edge_arrays=edge_arrays, split=split, overwrite=overwrite,
    )  # fmt: skip


def _refuse_beside_table(table: str, arrays: Mapping[str, Any]) -> None:
    given = [name for name, array in arrays.items() if array is not None]
    if given:
        raise InputError(f"from_edges: {table} is a table, so {', '.join(given)} must be its columns, and no arrays")


def _refuse_arrays(table: str, argument: str, columns: Any) -> None:
    """Raise an error unless *columns* are names of columns."""
    if not (columns is None or (isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns))):
        raise InputError(f"from_edges: {table} is a table, so {argument} must be a list of names of its columns")


def _read_edges(
    path: Path, edge_attr: Sequence[str] | None, further: Any
) -> tuple[NDArray[Any], dict[str, Any], dict[str, Any]]:
    features, further = [*(edge_attr or ())], [*(further or ())]
    table = read_table(path, ["source", "target"], [*features, *further], ["weight"])
    for end in ("source", "target"):
        if table[end].ndim != 1:
            raise InputError(f"{path}: column {end} holds lists: expected one node in each row")
    columns = {name: as_numbers(table[name], name, path) for name in [*features, *further]}
    ends = [table["source"], table["target"]]
    if {end.dtype.kind for end in ends} == SIGNED_AND_NOT:
        ends = [end.astype(str) for end in ends]
    features_of = _side_by_side({name: columns[name] for name in features}, "edge")
    values = {"edge_weight": table.get("weight"), "edge_attr": features_of}
    return np.stack(ends), values, {name: columns[name] for name in further}


def _read_nodes(
    path: Path, features: Sequence[str] | None, further: Any
) -> tuple[NDArray[Any], dict[str, Any], dict[str, Any]]:
    further = [*(further or ())]
    wanted = None if features is None else ["y", *SPLIT]
    table = read_table(path, ["node"], [*(features or ()), *further], wanted, nullable="y")
    others = {"node", "y", *SPLIT, *further}
    chosen = [*features] if features else [name for name in table if name not in others]
    columns = {name: as_numbers(table[name], name, path) for name in [*chosen, *further]}
    masks = {name: _as_flags(table.get(name)) for name in SPLIT}
    x = _side_by_side({name: columns[name] for name in chosen}, "node")
    return table["node"], {"x": x, "y": table.get("y"), **masks}, {name: columns[name] for name in further}


def _as_flags(column: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return a column of 0 and 1 as bool; another one as it is, to be refused."""
    is_flags = column is not None and column.dtype.kind in "iu" and np.isin(column, (0, 1)).all()
    return column.astype(bool) if column is not None and is_flags else column


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
