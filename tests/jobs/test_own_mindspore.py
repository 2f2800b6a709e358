"""Networks of users in MindSpore, in jobs: the same curves, weights and scores as PyG's layers in one process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (its name in every PyTorch program)
from typing_extensions import override

from jobs.conftest import _find
from jobs.mpirun import alone, finish
from pyg import nn as pyg
from unilaunch_graph.dropout import fill_mask, stream_keys

PROGRAM = str(Path(__file__).parent / "programs" / "own_mindspore.py")
EPOCHS = 10
#: As in programs/own_mindspore.py: the layers of each kind, by their width and the number of classes.
LAYERS: dict[str, Callable[[int, int], Any]] = {
    "gat": lambda a, c: (pyg.GATConv(a, 8, heads=2), pyg.GATConv(16, c, heads=3, concat=False)),
    "plain": lambda a, c: (
        pyg.GATConv(a, 8, heads=2, add_self_loops=False, negative_slope=0.25),
        pyg.GATConv(16, c, add_self_loops=False, negative_slope=0.25),
    ),
    "sage": lambda a, c: (pyg.SAGEConv(a, 16), pyg.SAGEConv(16, c)),
    "weighted": lambda a, c: (pyg.GraphConv(a, 16), pyg.GraphConv(16, c)),
}
#: How the ranks are started, and how many.
STARTS = {"alone": 1, "openmpi-5.0": 2, "openmpi-4.1": 3, "torchrun": 4}


class Net(torch.nn.Module):
    """The network of the program, in PyG."""

    def __init__(self, kind: str, width: int, classes: int) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = LAYERS[kind](width, classes)
        self.norm = torch.nn.BatchNorm1d(16)

    @override
    def forward(self, x: torch.Tensor, edges: tuple[torch.Tensor, ...], epoch: int) -> torch.Tensor:
        """Return one score for each class."""
        given = edges if self.kind == "weighted" else edges[:1]
        x = self.norm(F.elu(self.first(x, *given)))
        if self.training:
            mask = np.empty(tuple(x.shape))
            fill_mask(mask, np.arange(len(x)), stream_keys(7, epoch, 0), 0.3)
            x = x * torch.from_numpy(mask)
        scores: torch.Tensor = self.last(x, *given)
        return scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directed, weighted graph with loops, duplicates, nodes without an edge, and few training nodes.

    With its initial weights, and in expected.npz what PyG makes of them in one process.
    """
    folder = tmp_path_factory.mktemp("own")
    draw = np.random.default_rng(3)
    ends = draw.integers(0, 71, (2, 260))
    train = np.isin(np.arange(80), [1, 2, 3, 5, 8])  # so few that a part has none
    graph: dict[str, Any] = {
        "edge_index": ends, "edge_weight": draw.random(260, np.float32), "x": draw.random((80, 6), np.float32) - 0.5,
        "y": draw.integers(0, 3, 80), "train_mask": train, "val_mask": np.roll(train, 20),
        "test_mask": np.roll(train, 40),
    }  # fmt: skip
    np.savez(folder / "graph.npz", **graph)
    tensors = {name: torch.from_numpy(array) for name, array in graph.items()}
    initial: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for kind in LAYERS:
        torch.manual_seed(0)
        net = Net(kind, 6, 3).double()
        initial |= {f"{kind}.{name}": value.numpy().copy() for name, value in _state(net).items()}
        expected |= _train(net, tensors)
    np.savez(folder / "initial.npz", **initial)
    np.savez(folder / "expected.npz", **expected)
    return folder


def _state(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in net.state_dict().items() if "num_batches" not in name}


def _train(net: Net, graph: dict[str, torch.Tensor]) -> dict[str, Any]:
    x, y, mask = graph["x"].double(), graph["y"], graph["train_mask"]
    edges = (graph["edge_index"], graph["edge_weight"].double())
    optimizer = torch.optim.Adam(net.parameters(), 0.005, weight_decay=5e-4)
    losses = []
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x, edges, epoch)[mask], y[mask])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        scores = net(x, edges, 0).numpy()
    state = {f"{net.kind}.state.{name}": value.numpy() for name, value in _state(net).items()}
    return {f"{net.kind}.losses": losses, f"{net.kind}.scores": scores, **state}


@pytest.mark.parametrize("start", STARTS)
def test_curves_weights_and_scores_are_those_of_pyg_in_one_process(start: str, folder: Path, tmp_path: Path) -> None:
    """Under every launcher and on 1 to 4 parts, one of them without an edge, in float64."""
    program = [PROGRAM, str(folder), str(tmp_path / "out.npz"), str(EPOCHS)]
    if start == "alone":
        alone(program, tmp_path).check()
    elif start == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={STARTS[start]}"]
        finish([*torchrun, *program], tmp_path, None, 120).check()
    else:
        _find(start.partition("-")[2]).run(STARTS[start], program, tmp_path).check()
    expected, found = np.load(folder / "expected.npz"), np.load(tmp_path / "out.npz")
    lonely = {f"lonely.{name}" for name in expected if name.startswith("plain.")}
    assert set(found) == {*expected, *lonely}
    for name in found:
        np.testing.assert_allclose(
            found[name], expected[name.removeprefix("lonely.")], rtol=0, atol=1e-10, err_msg=name
        )
