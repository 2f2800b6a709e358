"""A message-passing layer of your own (PyG's tutorial on EdgeConv) on any number of ranks, with scores of all nodes.

unilaunch launch -n 2 examples/own_message_passing.py cora
"""

import sys

import torch
from torch_geometric.nn import MLP, MessagePassing

import unilaunch_graph as ug


class EdgeConv(MessagePassing):
    """max_j MLP(x_i, x_j - x_i): Wang et al. (TOG 2019), equation 8."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(aggr="max")
        self.mlp = MLP([2 * width_in, width_out, width_out], norm=None)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """(rows, width_in) -> (rows, width_out)"""
        return self.propagate(edge_index, x=x)

    def message(self, x_i: torch.Tensor, x_j: torch.Tensor) -> torch.Tensor:
        """Return one row for each edge."""
        return self.mlp(torch.cat([x_i, x_j - x_i], dim=1))


class Net(torch.nn.Module):
    """Two layers and a batch normalisation, whose statistics are those of all nodes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = EdgeConv(width, 16), torch.nn.BatchNorm1d(16), EdgeConv(16, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return one score for each class."""
        return self.last(self.norm(self.first(x, edge_index)).relu(), edge_index)


def main(name: str = "cora", epochs: str = "50") -> None:
    """Train, and write the scores and classes of all nodes."""
    part = ug.load(name)
    torch.manual_seed(0)
    model = ug.torch.distribute(Net(part.num_features, part.num_classes), part)
    optimizer, mask = torch.optim.Adam(model.parameters(), lr=0.01), part.train_mask
    for _ in range(int(epochs)):
        model.zero_grad()
        losses = torch.nn.functional.cross_entropy(model(part.x, part.edge_index)[mask], part.y[mask], reduction="none")
        loss = ug.torch.mean(losses, part.num_train)
        loss.backward()
        ug.torch.sum_gradients(model)
        optimizer.step()
    ug.predict(model.eval(), part, "scores.npz")
    print(f"rank {part.rank}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
