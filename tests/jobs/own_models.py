"""Networks of PyG that are not changed, in one process: what they must be equal to under `distribute`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.nn import functional

from jobs.programs.own_torch import LAYERS, Net
from unilaunch_graph.data.sources import open_dataset

#: Trains them under `distribute`: DATASET DATA_DIR OUTPUT.npz EPOCHS CASE...
PROGRAM = str(Path(__file__).parent / "programs" / "own_torch.py")
KINDS = tuple(LAYERS)
Arrays = dict[str, Any]


def read_graph(dataset: str, folder: Path, *, shuffle_edges: bool) -> tuple[Any, Any, int]:
    """Return what PyG's layers take (rows, edges, two arrays of the edges), labels and mask, and number of classes.

    Another order of the edges changes nothing but the rounding of the sums.
    """
    graph = open_dataset(dataset, folder, None, 0, None).load()
    x = graph.features.toarray() if isinstance(graph.features, sp.csr_array) else graph.features
    index = np.stack([graph.indices.astype(np.int64), np.repeat(np.arange(graph.num_nodes), graph.degrees)])
    order = np.random.default_rng(0).permutation(index.shape[1]) if shuffle_edges else slice(None)
    of_edges = (graph.weights, graph.edge_arrays.get("edge_attr"))
    values = [None if array is None else torch.from_numpy(array[order]).double() for array in of_edges]
    inputs = (torch.from_numpy(x).double(), torch.from_numpy(index[:, order]), *values)
    return inputs, (torch.from_numpy(graph.labels), torch.from_numpy(graph.split == 1)), graph.num_classes


def train_by_pyg(
    dataset: str, folder: Path, kinds: Iterable[str], epochs: int, *, shuffle_edges: bool = False
) -> Arrays:
    """Return what PyG alone makes of each kind, on the whole graph and in float64."""
    (x, index, *_), goal, classes = read_graph(dataset, folder, shuffle_edges=shuffle_edges)
    torch.set_default_dtype(torch.float64)
    try:
        found: Arrays = {}
        for kind in kinds:
            torch.manual_seed(0)
            found |= train(kind, Net(kind, x.shape[1], classes), ((x, index), *goal), epochs)
        return found
    finally:
        torch.set_default_dtype(torch.float32)


def train(kind: str, net: torch.nn.Module, data: tuple[Any, Any, Any], epochs: int, gamma: float = 0.7) -> Arrays:
    """Train in one process on inputs, labels and mask; return losses, final scores and final state."""
    inputs, y, mask = data
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(*inputs)[mask], y[mask])
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    net.eval()
    state = {f"{kind}.state.{name}": value.numpy() for name, value in net.state_dict().items()}
    return {f"{kind}.losses": losses, f"{kind}.scores": net(*inputs).detach().numpy(), **state}


def differences(output: Path, expected: Arrays, cases: Iterable[str]) -> dict[str, float]:
    """Return for each case the largest difference of a loss, a final weight, a running statistic or a score."""
    found = np.load(output)
    apart = {}
    for case in cases:
        kind = case.partition("+")[0]
        names = {name.removeprefix(case) for name in found if name.startswith(f"{case}.")}
        assert names == {name.removeprefix(kind) for name in expected if name.startswith(f"{kind}.")}
        if "+accumulated" in case:
            names = {name for name in names if ".norm." not in name}  # which sees each step twice
        apart[case] = max(float(np.abs(found[case + name] - expected[kind + name]).max()) for name in names)
    return apart
