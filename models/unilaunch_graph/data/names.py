"""Names of nodes, and the number of the node that each end of an edge names."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError

#: Kinds of whole numbers that numpy compares and joins as float64, which rounds from 2^53 on.
SIGNED_AND_NOT = {"i", "u"}


def text_of(argument: str, names: NDArray[Any]) -> NDArray[Any]:
    """Return names of objects, bytes and dates as text, others as they are."""
    try:
        return names.astype(str) if names.dtype.kind in "OSMm" else names
    except UnicodeDecodeError:
        raise InputError(f"from_edges: {argument} are bytes beyond ASCII: give them as text") from None


def as_whole(ends: NDArray[Any]) -> NDArray[Any]:
    """Return ends that are numbers in another form, 7.0 or 007, as whole numbers; others as they are."""
    try:
        values = ends.astype(np.float64)
    except ValueError:
        return ends
    is_whole = np.all((np.abs(values) < 2**53) & (values == np.trunc(values)))
    return values.astype(np.int64) if ends.dtype.kind == "U" and is_whole else ends


def number_of_each(ends: NDArray[Any], names: NDArray[Any], *, are_read: bool) -> NDArray[np.int64]:
    """Return the number of each named end; what is read from a table is compared as text. (2, num_edges)"""
    kinds = {names.dtype.kind, ends.dtype.kind}
    if kinds == SIGNED_AND_NOT or (are_read and "U" in kinds):
        names, ends = names.astype(str), ends.astype(str)
    if ends.ndim != 2 or len(ends) != 2:  # noqa: PLR2004  (the ends of an edge)
        raise InputError(f"from_edges: edges have the shape {ends.shape}; expected (2, num_edges)")
    if names.ndim != 1 or (names.dtype.kind == "U") != (ends.dtype.kind == "U"):
        raise InputError(f"from_edges: nodes are {names.dtype} {names.shape}, and the ends of edges {ends.dtype}")
    order: NDArray[np.int64] = np.argsort(names, kind="stable")
    known = names[order]
    twice = np.flatnonzero(known[1:] == known[:-1])
    if len(twice):
        raise InputError(f"from_edges: the node {known[twice[0]]} is named twice")
    found = np.searchsorted(known, ends).clip(max=max(len(known) - 1, 0))
    strange = np.argwhere(known[found] != ends) if len(known) else np.argwhere(np.ones(ends.shape, bool))
    if len(strange):
        side, edge = strange[0]
        raise InputError(
            f"from_edges: edge {edge}: {('source', 'target')[side]} {ends[side, edge]} is not among the nodes"
        )
    numbers: NDArray[np.int64] = order[found]
    return numbers
