"""Several labels for each node (as in PPI or Yelp): binary cross entropy, and micro-F1 over all ranks.

unilaunch launch -n 2 examples/multilabel.py
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import unilaunch
import unilaunch_graph as ug


def write_graph(folder: Path) -> None:
    """Write a graph in which a node has a label if one of its in-neighbours has the feature of that label."""
    draw = np.random.default_rng(0)
    edges = draw.integers(0, 300, (2, 900))
    x = (draw.random((300, 6)) < 0.2).astype(np.float32)
    y = np.zeros((300, 6), np.int64)
    np.maximum.at(y, edges[1], x[edges[0]].astype(np.int64))
    ug.from_edges(edges, folder, x=x, y=y, split=(0.6, 0.2, 0.2))


def main(epochs: str = "100") -> None:
    """Train; the sums of a rank's nodes are added over the ranks."""
    if unilaunch.init().rank == 0 and not Path("graph-labels").exists():
        write_graph(Path("graph-labels"))
    part = ug.load("graph-labels")
    y = part.y.float()  # (num_owned, num_classes) of 0 and 1
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([ug.torch.SAGEConv(6, 32), ug.torch.SAGEConv(32, part.num_classes)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)

    def scores() -> torch.Tensor:
        return layers[1](layers[0](part.x, part).relu(), part)

    for _ in range(int(epochs)):
        optimizer.zero_grad()
        losses = F.binary_cross_entropy_with_logits(scores()[part.train_mask], y[part.train_mask], reduction="sum")
        loss = ug.torch.mean(losses, part.num_train * part.num_classes)
        loss.backward()
        ug.torch.sum_gradients(layers)
        optimizer.step()
    found, true = scores()[part.test_mask] > 0, y[part.test_mask] > 0
    both, either = (ug.torch.mean(labels, 1).item() for labels in (found & true, torch.stack([found, true])))
    if part.rank == 0:  # a mean over 1 is the sum over all ranks
        print(f"loss {loss.item():.4f}, micro-F1 {2 * both / either:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
