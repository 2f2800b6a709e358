"""Networks of PyG in one process: what our own layers must equal on any number of parts."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from typing_extensions import override

from jobs.own_models import read_graph, train
from pyg import nn as pyg
from unilaunch_graph.dropout import fill_mask, stream_keys

#: The program that trains our layers in MindSpore: DATASET FOLDER OUTPUT.npz EPOCHS KIND...
PROGRAM = str(Path(__file__).parent / "programs" / "own_mindspore.py")
#: As in the program: the layers of each kind, by their width and the number of classes.
LAYERS: dict[str, Callable[[int, int], Any]] = {
    "gat": lambda a, c: (pyg.GATConv(a, 8, heads=2), pyg.GATConv(16, c, heads=3, concat=False)),
    "plain": lambda a, c: (
        pyg.GATConv(a, 8, heads=2, add_self_loops=False, negative_slope=0.25),
        pyg.GATConv(16, c, add_self_loops=False, negative_slope=0.25),
    ),
    "sage": lambda a, c: (pyg.SAGEConv(a, 16), pyg.SAGEConv(16, c)),
    "edges": lambda a, c: (
        pyg.GATConv(a, 8, heads=2, edge_dim=3, residual=True),
        pyg.GATConv(16, c, heads=2, concat=False, edge_dim=3, fill_value=0.5),
    ),
    "project": lambda a, c: (
        pyg.SAGEConv(a, 16, normalize=True, project=True), pyg.SAGEConv(16, c, "add", project=True, bias=False)
    ),
    "weighted": lambda a, c: (pyg.GraphConv(a, 16, "mean"), pyg.GraphConv(16, c, "mean")),
}  # fmt: skip


class Net(torch.nn.Module):
    """The network of the programs, in PyG; each forward of a training is an epoch."""

    def __init__(self, kind: str, width: int, classes: int) -> None:
        super().__init__()
        self.kind, self.epoch = kind, 0
        self.first, self.last = LAYERS[kind](width, classes)
        self.norm = torch.nn.BatchNorm1d(16)
        self.norm.num_batches_tracked = None  # MindSpore has none

    @override
    def forward(self, x: torch.Tensor, index: torch.Tensor, weight: Any, features: Any) -> torch.Tensor:
        """Return one score for each class."""
        given = {"weighted": (index, weight), "edges": (index, features)}.get(self.kind, (index,))
        x = self.norm(F.elu(self.first(x, *given)))
        if self.training:
            mask = np.empty(tuple(x.shape))
            fill_mask(mask, np.arange(len(x)), stream_keys(7, self.epoch, 0), 0.3)
            x, self.epoch = x * torch.from_numpy(mask), self.epoch + 1
        scores: torch.Tensor = self.last(x, *given)
        return scores


def write_directed_graph(file: Path) -> None:
    """Write a directed, weighted graph with loops, duplicates, nodes without an edge, and few training nodes."""
    draw = np.random.default_rng(3)
    train = np.isin(np.arange(80), [1, 2, 3, 5, 8])  # so few that a part has none
    graph: dict[str, Any] = {
        "edge_index": draw.integers(0, 71, (2, 260)), "edge_weight": draw.random(260, np.float32),
        "edge_attr": draw.random((260, 3), np.float32), "x": draw.random((80, 6), np.float32) - 0.5,
        "y": draw.integers(0, 3, 80), "train_mask": train, "val_mask": np.roll(train, 20),
        "test_mask": np.roll(train, 40),
    }  # fmt: skip
    np.savez(file, **graph)


def train_by_pyg(
    dataset: str, folder: Path, kinds: Iterable[str], epochs: int, *, shuffle_edges: bool = False
) -> dict[str, Any]:
    """Write *folder*/initial.npz, the initial weights, and return what PyG makes of them in one process."""
    inputs, goal, classes = read_graph(dataset, folder, shuffle_edges=shuffle_edges)
    initial: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for kind in kinds:
        torch.manual_seed(0)
        net = Net(kind, inputs[0].shape[1], classes).double()
        initial |= {f"{kind}.{name}": value.numpy().copy() for name, value in net.state_dict().items()}
        expected |= train(kind, net, (inputs, *goal), epochs, gamma=1.0)
    np.savez(folder / "initial.npz", **initial)
    return expected
