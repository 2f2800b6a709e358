"""Train PyG's GCN on the benchmark graph in one process of two threads; print figures as JSON. For epoch.py.

    python benchmarks/pyg_epoch.py GRAPH.npz EPOCHS

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
    """Three graph convolutions, as PyG's examples write them; the adjacency is normalised once, ahead."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.convolutions = torch.nn.ModuleList([GCNConv(a, b, normalize=False, bias=False) for a, b in pairs])

    @override
    def forward(self, rows: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for convolution in self.convolutions[:-1]:
            rows = convolution(rows, adjacency).relu()
        logits: torch.Tensor = self.convolutions[-1](rows, adjacency)
        return logits


def main() -> None:
    """Train and print."""
    assert torch.get_num_threads() == 2
    arrays = np.load(sys.argv[1])
    num_nodes = len(arrays["y"])
    values = torch.ones(len(arrays["indices"]))
    plain = torch.sparse_csr_tensor(
        torch.from_numpy(arrays["indptr"]).long(), torch.from_numpy(arrays["indices"]).long(), values,
        (num_nodes, num_nodes),
    )  # fmt: skip
    adjacency: Any = gcn_norm(plain, add_self_loops=True)
    adjacency = (adjacency[0] if isinstance(adjacency, tuple) else adjacency).to_sparse_csr()
    rows, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]).long()
    train = torch.from_numpy(arrays["train_mask"])
    net = Net([rows.shape[1], 128, 128, int(labels.max()) + 1])
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(int(sys.argv[2])):
        begin = time.perf_counter()
        adam.zero_grad()
        loss = F.cross_entropy(net(rows, adjacency)[train], labels[train])
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    median = statistics.median(seconds[1:])
    print(json.dumps({"seconds_per_epoch": median, "loss": losses, "ranks": [{"peak_memory_bytes": peak}]}))


if __name__ == "__main__":
    main()
