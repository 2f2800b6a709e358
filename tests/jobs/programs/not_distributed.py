"""Call a model of PyG on a part without `ug.torch.distribute`."""

from torch_geometric.nn import GCN

import unilaunch_graph as ug

part = ug.load("sbm")
GCN(part.num_features, 8, 2, part.num_classes)(part.x, part.edge_index)
