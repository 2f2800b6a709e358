"""A graph of networkx, a GIN of PyG, and the answer under the graph's own names.

unilaunch launch -n 2 examples/from_networkx.py
"""

import sys
from pathlib import Path

import networkx as nx
import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import GIN

import unilaunch
import unilaunch_graph as ug


def main(epochs: str = "60") -> None:
    """Learn from four members of Zachary's karate club whom each of the others follows."""
    club = nx.karate_club_graph()
    nx.set_node_attributes(club, {member: member in {0, 1, 32, 33} for member in club}, "train_mask")
    nx.set_node_attributes(club, {member: member not in {0, 1, 32, 33} for member in club}, "test_mask")
    if unilaunch.init().rank == 0 and not Path("club").exists():
        ug.from_networkx(club, "club", x=np.eye(len(club)), y="club")
    part = ug.load("club")
    torch.manual_seed(0)
    model = ug.torch.distribute(GIN(part.num_features, 16, 2, part.num_classes), part)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(int(epochs)):
        optimizer.zero_grad()
        out = model(part.x, part.edge_index)
        loss = F.cross_entropy(out[part.train_mask], part.y[part.train_mask], reduction="sum")
        ug.torch.mean(loss, part.num_train).backward()
        ug.torch.sum_gradients(model)
        optimizer.step()
    classes = ug.torch.gather(model(part.x, part.edge_index).argmax(1), part)
    if classes is not None:  # rank 0
        names = ug.read_names("club").classes
        for member, known in club.nodes(data="club"):
            print(f"member {member}: {names[classes[member]]}, known: {known}")


if __name__ == "__main__":
    main(*sys.argv[1:])
