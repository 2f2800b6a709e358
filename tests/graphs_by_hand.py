"""Small graphs for the tests."""

import numpy as np

from unilaunch_gcn.graph import Graph, undirected


def make_graph(num_nodes: int, edges: list[tuple[int, int]]) -> Graph:
    """Return a graph whose features name their node."""
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    indptr, indices = undirected(ends[0], ends[1], num_nodes)
    features = np.arange(num_nodes, dtype=np.float32)[:, None].repeat(3, axis=1)
    split = (np.arange(num_nodes) % 4).astype(np.uint8)
    return Graph(indptr, indices, features, np.arange(num_nodes) % 2, split, 2)
