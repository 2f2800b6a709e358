"""GraphSAGE with edge weights on a directed graph: W_1 mean(w_ij x_j) + W_2 x_i. PyG's SAGEConv takes no weights.

unilaunch launch -n 2 examples/sage_edge_weights.py GRAPH
"""

import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphConv

import unilaunch
import unilaunch_graph as ug


class SAGE(torch.nn.Module):
    """GraphConv with the mean is GraphSAGE with weights."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = GraphConv(width, 32, aggr="mean"), GraphConv(32, classes, aggr="mean")

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        """Return one score for each class."""
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


def write_graph(folder: Path) -> None:
    """Write a weighted, directed graph whose classes depend on the neighbours."""
    draw = np.random.default_rng(0)
    adjacency = sp.random_array((300, 300), density=0.03, rng=draw)
    x = draw.normal(size=(300, 8))
    ug.from_scipy(adjacency, folder, x=x, y=(adjacency.T @ x).argmax(axis=1))


def main(name: str = "graph-weighted", epochs: str = "50") -> None:
    """Train; the parts have the weights of their edges."""
    if unilaunch.init().rank == 0 and not Path(name).exists():
        write_graph(Path(name))
    part = ug.load(name)
    torch.manual_seed(0)
    model = ug.torch.distribute(SAGE(part.num_features, part.num_classes), part)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(int(epochs)):
        optimizer.zero_grad()
        out = model(part.x, part.edge_index, part.edge_weight)
        loss = F.cross_entropy(out[part.train_mask], part.y[part.train_mask], reduction="sum")
        loss = ug.torch.mean(loss, part.num_train)
        loss.backward()
        ug.torch.sum_gradients(model)
        optimizer.step()
    if part.rank == 0:
        print(f"loss {loss.item():.4f}, {part.num_nodes} nodes")


if __name__ == "__main__":
    main(*sys.argv[1:])
