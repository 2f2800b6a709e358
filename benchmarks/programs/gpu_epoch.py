"""Train PyG's layers on a GPU and print figures as JSON. For gpu.py.

    python benchmarks/programs/gpu_epoch.py {pyg,distribute} {gcn,sage,gat} GRAPH DROPOUT EPOCHS DEVICE

pyg: the whole graph, GCN and GraphSAGE on torch's CSR matrix, which is their fastest form, GAT on edge_index.
distribute: the same GAT on unilaunch's part. Three layers, 128 wide; GAT has two, 8 heads of 16 and then one of 40.
The seconds are the median of the epochs but the first three. Without memory enough: {"failed": the reason,
"is_out_of_memory": true}.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from typing_extensions import override

HIDDEN, WARM_UP = 128, 3
Scores = Callable[[], torch.Tensor]
Loss = Callable[[torch.Tensor], torch.Tensor]


class Net(torch.nn.Module):
    """Convolutions with ReLU and dropout between them, as PyG's examples write them."""

    def __init__(self, layers: list[torch.nn.Module], dropout: float) -> None:
        super().__init__()
        self.layers, self.dropout = torch.nn.ModuleList(layers), dropout

    @override
    def forward(self, rows: torch.Tensor, edges: Any) -> torch.Tensor:
        """Return the logits."""
        for depth, layer in enumerate(self.layers):
            rows = F.dropout(rows, self.dropout, self.training)
            rows = layer(rows, edges)
            if depth + 1 < len(self.layers):
                rows = rows.relu()
        return rows


def make_net(kind: str, width: int, classes: int, dropout: float) -> Net:
    """Return the network."""
    torch.manual_seed(0)
    if kind == "gat":
        return Net([nn.GATConv(width, HIDDEN // 8, heads=8), nn.GATConv(HIDDEN, classes)], dropout)
    pairs = pairwise([width, HIDDEN, HIDDEN, classes])
    if kind == "gcn":
        return Net([nn.GCNConv(a, b, normalize=False, bias=False) for a, b in pairs], dropout)
    return Net([nn.SAGEConv(a, b) for a, b in pairs], dropout)


def whole_graph(kind: str, path: Path, dropout: float, device: str) -> tuple[torch.nn.Module, Scores, Loss]:
    """Return PyG's network, its scores on the whole graph, and their loss."""
    names = ("indptr", "indices", "x", "y", "train_mask")
    arrays = np.load(path) if path.suffix == ".npz" else {name: np.load(path / f"{name}.npy") for name in names}
    indptr, sources, x, y, train = (torch.from_numpy(arrays[name]).to(device) for name in names)
    indptr, sources, y = indptr.long(), sources.long(), y.long()
    if kind == "gat":
        targets = torch.arange(len(x), device=device).repeat_interleave(indptr.diff())
        edges: Any = torch.stack((sources, targets))
    else:
        ones = torch.ones(len(sources), device=device)
        edges = torch.sparse_csr_tensor(indptr, sources, ones, (len(x), len(x)))
    if kind == "gcn":
        normal = gcn_norm(edges, add_self_loops=True)
        edges = (normal[0] if isinstance(normal, tuple) else normal).to_sparse_csr()
    net = make_net(kind, x.shape[1], int(y.max()) + 1, dropout).to(device)
    return net, lambda: net(x, edges), lambda scores: F.cross_entropy(scores[train], y[train])


def part_of_graph(kind: str, path: Path, dropout: float, device: str) -> tuple[torch.nn.Module, Scores, Loss]:
    """Return PyG's network on unilaunch's part, its scores, and their loss."""
    import unilaunch_graph as ug

    part = ug.load(path, device=device, partition_dir=path.parent / "parts", normalize_features=False)
    net = ug.torch.distribute(make_net(kind, part.num_features, part.num_classes, dropout), part)

    def loss_of(scores: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(scores[part.train_mask], part.y[part.train_mask], reduction="sum")
        total: torch.Tensor = ug.torch.mean(loss, part.num_train, part)
        return total

    return net, lambda: net(part.x, part.edge_index), loss_of


def train(way: str, kind: str, path: Path, dropout: float, epochs: int, device: str) -> dict[str, Any]:  # noqa: PLR0913, PLR0917
    """Return the figures of a training."""
    make = whole_graph if way == "pyg" else part_of_graph
    net, scores_of, loss_of = make(kind, path, dropout, device)
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(epochs):
        begin = time.perf_counter()
        adam.zero_grad()
        loss = loss_of(scores_of())
        torch.autograd.backward(loss)
        adam.step()
        losses.append(loss.item())  # waits for the device
        seconds.append(time.perf_counter() - begin)
    net.eval()
    with torch.no_grad():  # as `unilaunch run` does after its last epoch: what it needs counts in both peaks
        loss_of(scores_of()).item()
    on_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else on_host
    return {"seconds_per_epoch": statistics.median(seconds[WARM_UP:]), "loss": losses, "peak_memory_bytes": peak}


def main() -> None:
    """Train and print."""
    way, kind, path, dropout, epochs, device = sys.argv[1:]
    try:
        figures = train(way, kind, Path(path), float(dropout), int(epochs), device)
    except torch.OutOfMemoryError as error:
        figures = {"failed": str(error).partition(".")[0], "is_out_of_memory": True}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
