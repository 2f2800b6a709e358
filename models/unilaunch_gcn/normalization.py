"""How a graph's matrix is normalised: the diagonal factors on both sides of W, its weights with the loops.

`gcn`: A_hat = D^-1/2 (W + L) D^-1/2 of Kipf and Welling (ICLR 2017, equation 2), with the degrees of the whole graph;
L is the identity if the graph brings no loops of its own. `sage`: D^-1 W, the mean over the neighbours of Hamilton,
Ying and Leskovec (NeurIPS 2017); in a directed graph over the sources of a node's in-edges, as PyG's SAGEConv.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, FloatType, Indices


@dataclass(frozen=True, slots=True)
class Scales:
    """The operator left (W + loops) right; its transpose has W's, and left and right exchanged.

    Attributes:
        left: (n,) float64
        right: (n,) float64
        loops: (n,) float64
    """

    left: NDArray[np.float64]
    right: NDArray[np.float64]
    loops: NDArray[np.float64]


def node_scales(conv: str, strengths: NDArray[np.float64], loops: NDArray[np.float32]) -> Scales:
    """Return the factors of nodes.

    A node without any edge and without a loop has the factor 0, as in PyG's GDC: its row and column of A_hat are 0. A
    diffusion with a high threshold leaves such nodes.

    Args:
        conv: "gcn" or "sage".
        strengths: Sum of the weights of each node's edges in the whole graph, without that to itself. (n,)
        loops: Weight of the edge to itself. (n,)
    """
    if conv == "sage":
        left = _inverse(strengths)
        return Scales(left, np.ones(len(left)), np.zeros(len(left)))
    scale = _inverse(np.sqrt(strengths + loops))
    return Scales(scale, scale, loops.astype(np.float64))


def _inverse(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, sums, out=np.zeros(len(sums)), where=sums > 0)


def edge_weights(weights: NDArray[np.float32], indices: Indices, dtype: FloatType) -> Floats:
    """Return the weight of each edge: its own, or 1 in a graph that brings none. (edges,)"""
    return weights.astype(dtype) if len(weights) else np.ones(len(indices), dtype)
