"""The edges of a part as the layers of our own use them, made once."""

import numpy as np

from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.operators.edges import Edges


def edges_of(part: GraphPart, *, self_loops: bool) -> Edges:
    """Return the edges of *part*.

    Args:
        part: This rank's part.
        self_loops: Whether to replace the self-loops of the graph by one loop at each owned node, as PyG's
            `add_self_loops=True` does.
    """
    made = part.operators.made
    if self_loops not in made:
        source, target = part.operators.edges.ends
        if self_loops:
            kept, loop = source != target, np.arange(part.num_owned)
            source, target = (np.concatenate((ends[kept], loop)) for ends in (source, target))
            order = np.argsort(target, kind="stable")
            source, target = source[order], target[order]
        indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=part.num_owned))))
        made[self_loops] = Edges(indptr, source.astype(np.int32), part.num_owned + part.num_halo)
    edges: Edges = made[self_loops]
    return edges
