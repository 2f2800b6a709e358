"""Graph diffusion convolution (Klicpera, Weissenberger and Guennemann, NeurIPS 2019): other edges for the same nodes.

S = sum over k of alpha (1 - alpha)^k T^k with T = D^-1/2 (A + I) D^-1/2: personalised PageRank, symmetric. Of each row
the largest entries are kept, or those above a threshold, and the mean with the transpose makes S symmetric again. The
GCN then normalises it as any graph: D_S^-1/2 S D_S^-1/2, and S brings its own diagonal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.graph import Graph

#: Nodes up to which S is inverted exactly: 200 MB as a dense matrix.
EXACT = 5_000
#: A residual below this share of its node's degree is not pushed any further. Of Andersen, Chung and Lang (FOCS 2006).
RESIDUAL = 1e-4
_BATCH = 512  # rows of S that are made at a time


@dataclass(frozen=True, slots=True)
class Diffusion:
    """How a graph is diffused.

    Attributes:
        alpha: Probability of going back to the start.
        top_k: Largest entries that are kept of each row.
        threshold: Smallest entry that is kept; None: keep the *top_k* largest.
    """

    alpha: float
    top_k: int
    threshold: float | None


def diffuse(graph: Graph, how: Diffusion) -> Graph:
    """Return the graph of S on the same nodes, with weights and loops; its own weights are not asked for."""
    num_nodes = graph.num_nodes
    adjacency = sp.csr_array(
        (np.ones(len(graph.indices)), graph.indices, graph.indptr), shape=(num_nodes, num_nodes)
    ) + sp.eye_array(num_nodes, format="csr")
    rows = _exact(adjacency, how.alpha) if num_nodes <= EXACT else _pushed(adjacency, how.alpha)
    kept = sp.csr_array(sp.vstack([_largest(block, how) for block in rows], format="csr"))
    symmetric = sp.csr_array((kept + kept.T) / 2)
    loops = symmetric.diagonal().astype(np.float32)
    symmetric.setdiag(0)
    symmetric.eliminate_zeros()
    symmetric.sort_indices()
    if not symmetric.nnz and len(graph.indices):
        _warn_of_no_edges(how)
    return replace(
        graph,
        indptr=symmetric.indptr.astype(np.int64),
        indices=symmetric.indices.astype(np.int32),
        weights=symmetric.data.astype(np.float32),
        loops=loops,
    )


def _warn_of_no_edges(how: Diffusion) -> None:
    from loguru import logger

    option, change = f"--gdc-threshold {how.threshold}", "lower"
    if how.threshold is None:
        option, change = f"--gdc-top-k {how.top_k}", "higher"
    logger.warning(
        f"{option} keeps no edge between two nodes, so the network uses no neighbours: expected at least one edge; "
        f"take a {change} number"
    )


def _exact(adjacency: sp.csr_array, alpha: float) -> Iterator[sp.csr_array]:
    """Yield S's rows in batches: alpha (I - (1 - alpha) T)^-1."""
    scale = np.asarray(adjacency.sum(axis=1)) ** -0.5
    matrix = (-(1 - alpha) * scale[:, None]) * adjacency.toarray() * scale
    matrix[np.diag_indices_from(matrix)] += 1
    inverse = alpha * np.linalg.inv(matrix)
    for begin in range(0, len(inverse), _BATCH):
        yield sp.csr_array(inverse[begin : begin + _BATCH])


def _pushed(adjacency: sp.csr_array, alpha: float) -> Iterator[sp.csr_array]:
    """Yield S's rows in batches, each entry short by RESIDUAL * sqrt(d_i d_j) at most: pushes from all rows at once."""
    degrees = np.asarray(adjacency.sum(axis=1))
    root = degrees**0.5
    transition = sp.csr_array((adjacency.data / np.repeat(degrees, np.diff(adjacency.indptr)), adjacency.indices,
                               adjacency.indptr), shape=adjacency.shape)  # fmt: skip
    for begin in range(0, len(degrees), _BATCH):
        starts = np.arange(begin, min(begin + _BATCH, len(degrees)))
        walk = _push(transition, degrees, starts, alpha)
        # From the random walk's D^-1 A to the symmetric T: D^1/2 S D^-1/2.
        walk.data *= np.repeat(root[starts], np.diff(walk.indptr)) / root[walk.indices]
        yield walk


def _push(
    transition: sp.csr_array, degrees: NDArray[np.float64], starts: NDArray[np.int64], alpha: float
) -> sp.csr_array:
    """Return approximate PageRank vectors personalised to *starts*. (len(starts), num_nodes)"""
    shape = (len(starts), len(degrees))
    residual = sp.csr_array((np.ones(len(starts)), starts, np.arange(len(starts) + 1)), shape=shape)
    found = sp.csr_array(shape)
    while True:
        is_large = residual.data >= RESIDUAL * degrees[residual.indices]
        if not is_large.any():
            return found
        pushed = residual.copy()
        pushed.data = np.where(is_large, pushed.data, 0.0)
        pushed.eliminate_zeros()
        found = sp.csr_array(found + alpha * pushed)
        residual.data = np.where(is_large, 0.0, residual.data)
        residual.eliminate_zeros()
        residual = sp.csr_array(residual + (1 - alpha) * (pushed @ transition))


def _largest(rows: sp.csr_array, how: Diffusion) -> sp.csr_array:
    """Return *rows* with only the entries that are kept."""
    keep = rows.data >= how.threshold if how.threshold is not None else _first_of_each_row(rows, how.top_k)
    kept = sp.csr_array((np.where(keep, rows.data, 0.0), rows.indices, rows.indptr), shape=rows.shape)
    kept.eliminate_zeros()
    return kept


def _first_of_each_row(rows: sp.csr_array, top_k: int) -> NDArray[np.bool_]:
    """Return which entries are among the *top_k* largest of their row; of equal ones the first are."""
    # One call a row: of a few hundred dense rows at a time, each with up to as many entries as there are nodes.
    parts = [rows.data[begin:end] for begin, end in pairwise(rows.indptr)]
    least = [np.partition(part, -top_k)[-top_k] if len(part) > top_k else -np.inf for part in parts]
    lengths = np.diff(rows.indptr)
    near = np.flatnonzero(rows.data >= np.repeat(least, lengths))  # those and their equals: few that must be sorted
    row = np.repeat(np.arange(len(lengths)), lengths)[near]
    order = np.lexsort((-rows.data[near], row))
    place = np.arange(len(near)) - np.searchsorted(row, row)
    keep = np.zeros(rows.nnz, bool)
    keep[near[order[place < top_k]]] = True
    return keep
