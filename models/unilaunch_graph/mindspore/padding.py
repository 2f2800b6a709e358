"""Add a node to a part without edges: without rows MindSpore's operators return undefined values or crash."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.data.graph import NONE
from unilaunch_graph.partition.part import Part

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
