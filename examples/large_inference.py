"""Scores of every node of a graph whose rows do not fit in memory: layer by layer, from mapped files.

unilaunch launch -n 2 examples/large_inference.py graph.npz 1000000000
"""

import sys

import numpy as np
import torch
from torch_geometric.nn import SAGEConv

import unilaunch
import unilaunch_graph as ug


class SAGE(torch.nn.Module):
    """Two layers; `layers` names the steps of `forward` one by one."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv(num_features, 128)
        self.conv2 = SAGEConv(128, num_classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return one score for each class."""
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def layers(self) -> list[object]:
        """Return what `ug.predict` applies to a block of nodes at a time."""
        return [self.conv1, torch.relu, self.conv2]


def main(graph: str, memory: str, weights: str = "", num_features: str = "3", num_classes: str = "3") -> None:
    """Read the weights that a training has saved, if they are given; write scores.npz; say what is in it."""
    torch.manual_seed(0)
    model = SAGE(int(num_features), int(num_classes)).eval()
    if weights:
        model.load_state_dict(torch.load(weights, weights_only=True))
    rows = ug.predict(model.layers(), graph, "scores.npz", memory=int(memory))
    me = unilaunch.init()
    print(f"rank {me.rank} has the rows of {len(rows)} nodes")
    if me.rank == 0:
        with np.load("scores.npz") as file:
            print(f"scores.npz holds scores {file['scores'].shape} and classes {file['classes'].shape}")


if __name__ == "__main__":
    main(*sys.argv[1:])
