"""Rank 1 calls its model a second time with other names of the arguments than the other ranks."""

import sys

from torch_geometric.nn import SAGEConv

import unilaunch_graph as ug

part = ug.load(sys.argv[1])
model = ug.torch.distribute(SAGEConv(part.num_features, 3), part)
model(part.x, part.edge_index)
if part.rank == 1:
    model(part.x, edge_index=part.edge_index)
else:
    model(part.x, part.edge_index)
