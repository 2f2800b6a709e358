"""Train PyG's GCN on the benchmark graph in one process of two threads; print figures as JSON. For epoch.py.

    python benchmarks/pyg_epoch.py GRAPH.npz EPOCHS DROPOUT {tutorial,same,ahead}

The forms are epoch.py's. tutorial: edge_index, normalised in each epoch; else a CSR matrix, normalised once.
The seconds are the median of the epochs but the first, as unilaunch counts its own.
"""

import json
import resource
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from typing_extensions import override


class Net(torch.nn.Module):
    """Three graph convolutions, as PyG's examples write them; of rows that are A X, the first is a product."""

    def __init__(self, widths: list[int], dropout: float, form: str) -> None:
        super().__init__()
        self.dropout, self.form = dropout, form
        convolutions: list[torch.nn.Module] = [
            GCNConv(a, b, normalize=form == "tutorial", bias=False) for a, b in pairwise(widths)
        ]
        if form == "ahead":
            convolutions[0] = torch.nn.Linear(widths[0], widths[1], bias=False)
        self.convolutions = torch.nn.ModuleList(convolutions)

    @override
    def forward(self, rows: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for depth, convolution in enumerate(self.convolutions):
            if depth or self.form == "same":
                rows = F.dropout(rows, self.dropout)
            rows = convolution(rows, edges) if depth or self.form != "ahead" else convolution(rows)
            if depth < len(self.convolutions) - 1:
                rows = rows.relu()
        return rows


def _edges(indptr: torch.Tensor, sources: torch.Tensor, form: str) -> Any:
    """Return edge_index, or the CSR matrix A_hat."""
    count = len(indptr) - 1
    if form == "tutorial":
        return torch.stack((sources, torch.arange(count).repeat_interleave(indptr.diff())))
    plain = torch.sparse_csr_tensor(indptr, sources, torch.ones(len(sources)), (count, count))
    adjacency: Any = gcn_norm(plain, add_self_loops=True)
    return (adjacency[0] if isinstance(adjacency, tuple) else adjacency).to_sparse_csr()


def main() -> None:
    """Train and print."""
    assert torch.get_num_threads() == 2
    path, epochs, dropout, form = sys.argv[1:]
    arrays = np.load(path)
    edges = _edges(torch.from_numpy(arrays["indptr"]).long(), torch.from_numpy(arrays["indices"]).long(), form)
    rows, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]).long()
    train = torch.from_numpy(arrays["train_mask"])
    if form == "ahead":
        rows = edges @ rows
    net = Net([rows.shape[1], 128, 128, int(labels.max()) + 1], float(dropout), form)
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(int(epochs)):
        begin = time.perf_counter()
        adam.zero_grad()
        loss = F.cross_entropy(net(rows, edges)[train], labels[train])
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    median = statistics.median(seconds[1:])
    print(json.dumps({"seconds_per_epoch": median, "loss": losses, "ranks": [{"peak_memory_bytes": peak}]}))


if __name__ == "__main__":
    main()
