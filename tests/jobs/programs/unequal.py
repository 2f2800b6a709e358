"""Rank 0 fetches rows once more than rank 1, or rank 1 calls its model with other names: WHAT GRAPH."""

import sys
from typing import Any

import numpy as np

import unilaunch_graph as ug

what, graph = sys.argv[1:]
backend: Any = ug.mindspore if what == "mindspore" else ug.torch
part = backend.load(graph)
if what == "structure":
    from torch_geometric.nn import SAGEConv

    model = backend.distribute(SAGEConv(part.num_features, 3), part)
    model(part.x, part.edge_index)
    model(part.x, edge_index=part.edge_index) if part.rank else model(part.x, part.edge_index)
else:
    backend.barrier(part)
    for step in range(3 - part.rank):
        backend.fetch(part.x, np.array([step]), part)
    backend.sum_ranks(part.x.sum(), part)
