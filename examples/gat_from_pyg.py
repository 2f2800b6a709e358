"""A GAT of PyG, as its tutorial writes it, on the full graph over any number of ranks.

unilaunch launch -n 2 examples/gat_from_pyg.py Cora
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GATConv

import unilaunch
import unilaunch_graph as ug


class GAT(torch.nn.Module):
    """Nothing in the model knows of ranks."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = GATConv(num_features, 8, heads=8)
        self.conv2 = GATConv(64, num_classes, heads=1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return one score for each class."""
        return self.conv2(F.elu(self.conv1(x, edge_index)), edge_index)


def main(name: str = "Cora", epochs: str = "100") -> None:
    """Write PyG's data as a folder, once; train; say how many test nodes are right."""
    folder = Path(f"graph-{name}")
    if unilaunch.init().rank == 0 and not folder.exists():
        ug.from_pyg(Planetoid("data", name)[0], folder)
    part = ug.load(str(folder))
    torch.manual_seed(0)
    model = ug.torch.distribute(GAT(part.num_features, part.num_classes), part)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    for _ in range(int(epochs)):
        optimizer.zero_grad()
        out = model(part.x, part.edge_index)
        loss = F.cross_entropy(out[part.train_mask], part.y[part.train_mask], reduction="sum")
        loss = ug.torch.mean(loss, part.num_train)
        loss.backward()
        ug.torch.sum_gradients(model)
        optimizer.step()
    right = (model(part.x, part.edge_index).argmax(1) == part.y)[part.test_mask].sum()
    accuracy = ug.torch.mean(right, part.num_test)
    if part.rank == 0:
        print(f"loss {loss.item():.4f}, test accuracy {accuracy.item():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
