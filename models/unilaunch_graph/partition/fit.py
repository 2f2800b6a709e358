"""Check that arrays from a part's files fit together, before compiled code follows their indices.

A hash in a manifest protects from damage only: the author of a harmful partition computes it too.
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from unilaunch_graph.data.arrays import check_csr, check_range

#: Types and numbers of dimensions of the arrays that each part has, beside "labels", "features" and the further arrays
#: of edges and nodes, of which only the rows are checked.
PART = {
    "owned": "int64 1", "halo": "int64 1", "halo_counts": "int64 1", "send_rows": "int32 1", "send_counts": "int64 1",
    "owned_indptr": "int64 1", "owned_indices": "int32 1", "halo_indptr": "int64 1", "halo_indices": "int32 1",
    "owned_weights": "float32 1", "halo_weights": "float32 1", "strengths": "float64 1", "loops": "float32 1",
    "split": "uint8 1",
}  # fmt: skip
#: Of the whole graph, which stands once beside the parts, where ranks divide columns.
ADJACENCY = {"offsets": "int64 1", "indptr": "int64 1", "indices": "int32 1", "weights": "float32 1"}
#: Of sparse features; their values are of any type.
SPARSE = {"features_indptr": "int64 1", "features_indices": "int32 1"}
SPARSE_DATA = "features_data"
#: Before the names of the further arrays of the edges from owned and from halo nodes, and of the owned nodes.
FURTHER = ("owned_edge.", "halo_edge.", "node.")
_Arrays = Mapping[str, NDArray[Any]]


def check_part(arrays: _Arrays, num_features: int) -> None:
    """Check the arrays of a part.

    Raises:
        ValueError: One is missing or does not fit the others; the text names it.
    """
    _check_types(arrays, PART)
    owned, halo = len(arrays["owned"]), len(arrays["halo"])
    for kind, columns in (("owned", owned), ("halo", halo)):
        check_csr(arrays[f"{kind}_indptr"], arrays[f"{kind}_indices"], (owned, columns), prefix=f"{kind}_")
        if len(arrays[f"{kind}_weights"]):  # else each weight is 1
            _check_length(arrays, f"{kind}_weights", len(arrays[f"{kind}_indices"]))
    check_range(arrays["send_rows"], owned, "send_rows")
    for name, rows in (("halo_counts", halo), ("send_counts", len(arrays["send_rows"]))):
        check_range(arrays[name], rows + 1, name)
        if arrays[name].sum() != rows:
            raise ValueError(f"{name} has the sum {arrays[name].sum()}, but there are {rows} rows")
    _check_length(arrays, "send_counts", len(arrays["halo_counts"]))
    for name in ("strengths", "loops", "split", "labels"):
        _check_length(arrays, name, owned)
    _check_further(arrays, owned)
    if {*SPARSE}.isdisjoint(arrays):
        _check_length(arrays, "features", owned)
    else:
        _check_types(arrays, SPARSE)
        check_csr(arrays["features_indptr"], arrays["features_indices"], (owned, num_features), prefix="features_")
        _check_length(arrays, SPARSE_DATA, len(arrays["features_indices"]))


def _check_further(arrays: _Arrays, num_owned: int) -> None:
    """Check the rows of the further arrays, and that both kinds of edges have the same ones."""
    inner, outer, nodes = FURTHER
    names = {prefix: {name.removeprefix(prefix) for name in arrays if name.startswith(prefix)} for prefix in FURTHER}
    for name in names[inner] | names[outer]:
        _check_length(arrays, f"{inner}{name}", len(arrays["owned_indices"]))
        _check_length(arrays, f"{outer}{name}", len(arrays["halo_indices"]))
    for name in names[nodes]:
        _check_length(arrays, f"{nodes}{name}", num_owned)


def check_adjacency(arrays: _Arrays) -> None:
    """Check the arrays of the whole graph that parts share.

    Raises:
        ValueError: One is missing or does not fit the others; the text names it.
    """
    _check_types(arrays, ADJACENCY)
    nodes = len(arrays["indptr"]) - 1
    check_csr(arrays["indptr"], arrays["indices"], (nodes, nodes))
    check_range(arrays["offsets"], nodes + 1, "offsets")
    if len(arrays["weights"]):
        _check_length(arrays, "weights", len(arrays["indices"]))


def _check_types(arrays: _Arrays, types: Mapping[str, str]) -> None:
    for name, wanted in types.items():
        if name not in arrays:
            raise ValueError(f"{name} is missing")
        array = arrays[name]
        if (found := f"{array.dtype} {array.ndim}") != wanted:
            raise ValueError(f"{name}: expected type and dimensions {wanted}, found {found}")


def _check_length(arrays: _Arrays, name: str, length: int) -> None:
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    if arrays[name].shape[:1] != (length,):
        raise ValueError(f"{name} has shape {arrays[name].shape}, but must have {length} rows")
