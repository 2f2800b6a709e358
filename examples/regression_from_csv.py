"""Regression on a graph from two CSV files: predict a value of each node, and say the error in its unit.

unilaunch launch -n 2 examples/regression_from_csv.py
"""

import csv
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import unilaunch
import unilaunch_graph as ug


def write_tables(edges: Path, nodes: Path) -> None:
    """Write 200 stations on a line that is a ring; a station's traffic comes from the two before it."""
    draw = random.Random(0)
    sizes = [draw.random() for _ in range(200)]
    with edges.open("w") as file:
        rows = [(f"s{a}", f"s{b % 200}") for a in range(200) for b in (a + 1, a + 2)]
        csv.writer(file).writerows([("source", "target"), *rows])
    with nodes.open("w") as file:
        rows = [(f"s{a}", size, 10 * (sizes[a - 1] + sizes[a - 2])) for a, size in enumerate(sizes)]
        csv.writer(file).writerows([("node", "size", "y"), *rows])


def main(epochs: str = "200") -> None:
    """Train with the squared error; report its root over the test nodes."""
    if unilaunch.init().rank == 0 and not Path("stations").exists():
        write_tables(Path("edges.csv"), Path("nodes.csv"))
        ug.from_edges("edges.csv", "stations", nodes="nodes.csv", split=(0.6, 0.2, 0.2))
    part = ug.load("stations")
    torch.manual_seed(0)  # the layers of ug.torch are the user's own modules: the same weights on every rank
    layers = torch.nn.ModuleList([ug.torch.SAGEConv(part.num_features, 16), ug.torch.SAGEConv(16, 1)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.03)

    def mean_square(mask: torch.Tensor, count: int) -> torch.Tensor:
        out = layers[1](layers[0](part.x, part).relu(), part).squeeze(1)
        return ug.torch.mean(F.mse_loss(out[mask], part.y[mask], reduction="sum"), count)

    for _ in range(int(epochs)):
        optimizer.zero_grad()
        mean_square(part.train_mask, part.num_train).backward()
        ug.torch.sum_gradients(layers)
        optimizer.step()
    error = mean_square(part.test_mask, part.num_test).sqrt()
    if part.rank == 0:
        print(f"root mean square error {error.item():.2f} over {part.num_test} stations")


if __name__ == "__main__":
    main(*sys.argv[1:])
