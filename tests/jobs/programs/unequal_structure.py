"""Rank 1 calls its model a second time with edge weights, which the other ranks leave out."""

import sys

import torch
from torch_geometric.nn import GCNConv

import unilaunch_graph as ug

part = ug.load(sys.argv[1])
model = ug.torch.distribute(GCNConv(part.num_features, 3), part)
weights = torch.ones(part.edge_index.shape[1])
model(part.x, part.edge_index)
model(part.x, part.edge_index, weights if part.rank else None)
