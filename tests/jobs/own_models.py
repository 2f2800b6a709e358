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


def train_by_pyg(
    dataset: str, folder: Path, kinds: Iterable[str], epochs: int, *, shuffle_edges: bool = False
) -> Arrays:
    """Return what PyG alone makes of each kind, on the whole graph and in float64.

    Another order of the edges changes nothing but the rounding of the sums.
    """
    graph = open_dataset(dataset, folder, None, 0, None).load()
    features = graph.features.toarray() if isinstance(graph.features, sp.csr_array) else graph.features
    x, y, mask = torch.from_numpy(features).double(), torch.from_numpy(graph.labels), torch.from_numpy(graph.split == 1)
    targets = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    edge_index = torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))
    if shuffle_edges:
        edge_index = edge_index[:, torch.randperm(edge_index.shape[1], generator=torch.Generator().manual_seed(0))]
    torch.set_default_dtype(torch.float64)
    try:
        found: Arrays = {}
        for kind in kinds:
            torch.manual_seed(0)
            found |= _train(kind, Net(kind, x.shape[1], graph.num_classes), (x, edge_index, y, mask), epochs)
        return found
    finally:
        torch.set_default_dtype(torch.float32)


def _train(kind: str, model: torch.nn.Module, data: tuple[torch.Tensor, ...], epochs: int) -> Arrays:
    x, edge_index, y, mask = data
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edge_index)[mask], y[mask])
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    model.eval()
    scores = model(x, edge_index).detach().numpy()
    state = {f"{kind}.state.{name}": value.numpy() for name, value in model.state_dict().items()}
    return {f"{kind}.losses": losses, f"{kind}.scores": scores, **state}


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
