"""The examples in MindSpore, in float64 and on 1 to 4 parts: the losses of the same network in PyG, in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from typing_extensions import override

from jobs.mpirun import Launcher, alone
from jobs.own_layers import write_directed_graph
from jobs.test_examples import EXAMPLES, VARIABLES
from pyg import nn as pyg
from unilaunch_graph.dropout import fill_mask, stream_keys

PROGRAM = str(Path(__file__).parent / "programs" / "curves_of_examples.py")
EPOCHS = 20


def _dropped(x: torch.Tensor, probability: float, epoch: int, layer: int = 0) -> torch.Tensor:
    mask = np.empty(tuple(x.shape))
    fill_mask(mask, np.arange(len(x)), stream_keys(0, epoch, layer), probability)
    return x * torch.from_numpy(mask)


class GAT(torch.nn.ModuleList):
    """The network of mindspore_gat.py; its epochs are numbered from 1."""

    rate, decay = 0.005, 5e-4

    def __init__(self, width: int, classes: int) -> None:
        options: dict[str, Any] = {"add_self_loops": False, "bias": False}
        super().__init__([pyg.GATConv(width, 8, heads=8, **options), pyg.GATConv(64, classes, **options)])

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, epoch: int) -> torch.Tensor:
        x = functional.elu(self[0](_dropped(x, 0.6, epoch + 1, x.shape[1]), edge_index))
        scores: torch.Tensor = self[1](_dropped(x, 0.6, epoch + 1, 64), edge_index)
        return scores


class SAGE(torch.nn.Module):
    """The network of mindspore_sage.py."""

    rate, decay = 0.01, 0.0

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = pyg.SAGEConv(width, 32), torch.nn.BatchNorm1d(32), pyg.SAGEConv(32, classes)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, epoch: int) -> torch.Tensor:
        x = self.norm(self.first(x, edge_index).relu())
        scores: torch.Tensor = self.last(_dropped(x, 0.5, epoch), edge_index)
        return scores


#: The twin of each example.
TWINS: dict[str, Callable[[int, int], GAT | SAGE]] = {"mindspore_gat": GAT, "mindspore_sage": SAGE}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directed graph; of four parts some have no training node."""
    graph = tmp_path_factory.mktemp("curves") / "graph.npz"
    write_directed_graph(graph)
    return graph


def _train(net: GAT | SAGE, graph: Path) -> list[float]:
    """Train the twin on the whole graph; return the losses."""
    arrays = np.load(graph)
    x, y, mask = (torch.from_numpy(arrays[name]) for name in ("x", "y", "train_mask"))
    edge_index = torch.from_numpy(arrays["edge_index"])
    optimizer = torch.optim.Adam(net.parameters(), net.rate, weight_decay=net.decay)
    losses = []
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x.double(), edge_index, epoch)[mask], y[mask])
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.mindspore
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_the_same_curve_as_torch(parts: int, graph: Path, openmpi5: Launcher, tmp_path: Path) -> None:
    """From the same initial weights, each loss to 1e-10."""
    line = [PROGRAM, str(graph), str(EPOCHS), "out.npz", *(str(EXAMPLES / f"{name}.py") for name in TWINS)]
    run = alone(line, tmp_path, VARIABLES) if parts == 1 else openmpi5.run(parts, line, tmp_path, variables=VARIABLES)
    run.check()
    found = dict(np.load(tmp_path / "out.npz"))
    for name, twin in TWINS.items():
        net = twin(6, 3).double()
        state = {key: torch.from_numpy(found[f"{name}.{key}"]) for key, _ in net.named_parameters()}
        net.load_state_dict(state, strict=False)
        losses = _train(net, graph)
        assert losses[-1] < losses[0], name
        np.testing.assert_allclose(found[f"{name}.losses"], losses, rtol=0, atol=1e-10, err_msg=name)
