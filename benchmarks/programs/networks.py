"""Train one network on the benchmark graph and print figures as JSON, one line for each rank. For own_models.py.

    python benchmarks/programs/networks.py {pyg,csr,distribute,own} {gat,sage,gin} GRAPH.npz PARTS EPOCHS

pyg, csr: PyG's layers on the whole graph in one process, on edge_index or on torch's CSR matrix. distribute: the same
layers on this rank's part. own: unilaunch's layers. The seconds are the median of the epochs but the first.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from typing_extensions import override

HIDDEN, CLASSES = 128, 40


class Net(torch.nn.Module):
    """Two convolutions, as PyG's examples write them."""

    def __init__(self, first: torch.nn.Module, last: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last

    @override
    def forward(self, rows: torch.Tensor, edges: Any) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.last(F.elu(self.first(rows, edges)), edges)
        return logits


def make_net(kind: str, layers: Any, width: int) -> Net:
    """Return the network; GAT has 8 heads of 16 and then one of 40, as the benchmark's figures are about."""
    torch.manual_seed(0)
    if kind == "gat":
        return Net(layers.GATConv(width, HIDDEN // 8, heads=8), layers.GATConv(HIDDEN, CLASSES))
    if kind == "sage":
        return Net(layers.SAGEConv(width, HIDDEN), layers.SAGEConv(HIDDEN, CLASSES))
    linear = torch.nn.Linear
    inner = torch.nn.Sequential(linear(width, HIDDEN), torch.nn.ReLU(), linear(HIDDEN, HIDDEN))
    return Net(layers.GINConv(inner), layers.GINConv(linear(HIDDEN, CLASSES)))


def whole_graph(way: str, kind: str, path: str) -> tuple[torch.nn.Module, Callable[[], torch.Tensor]]:
    """Return PyG's network, and its loss on the whole graph."""
    from torch_geometric import nn

    assert torch.get_num_threads() == 2
    arrays = {name: torch.from_numpy(array) for name, array in np.load(path).items()}
    x, labels, train, indptr = arrays["x"], arrays["y"].long(), arrays["train_mask"], arrays["indptr"].long()
    sources, nodes = arrays["indices"].long(), torch.arange(len(x))
    edges = torch.stack((sources, nodes.repeat_interleave(indptr.diff())))
    if way == "csr":
        edges = torch.sparse_csr_tensor(indptr, sources, torch.ones(len(sources)), (len(x), len(x)))
    net = make_net(kind, nn, x.shape[1])
    return net, lambda: F.cross_entropy(net(x, edges)[train], labels[train])


def part_of_graph(
    way: str, kind: str, path: str, parts: str
) -> tuple[torch.nn.Module, Callable[[], torch.Tensor], Any]:
    """Return the network on this rank's part, the loss of the whole graph, and what sums the gradients."""
    import unilaunch_graph as ug

    part = ug.load(path, partition_dir=parts, normalize_features=False)
    assert torch.get_num_threads() == 1
    if way == "distribute":
        from torch_geometric import nn

        edges: Any = part.edge_index
        net = ug.torch.distribute(make_net(kind, nn, part.num_features), part)
    else:
        edges = part
        net = make_net(kind, ug.torch, part.num_features)

    def loss_of() -> torch.Tensor:
        scores = net(part.x, edges)[part.train_mask]
        loss = F.cross_entropy(scores, part.y[part.train_mask], reduction="sum")
        total: torch.Tensor = ug.torch.mean(loss, part.num_train, part)
        return total

    return net, loss_of, lambda: ug.torch.sum_gradients(net, part)


def main() -> None:
    """Train and print."""
    way, kind, path, parts, epochs = sys.argv[1:]
    together: Callable[[], Any] = lambda: None  # noqa: E731
    if way in {"pyg", "csr"}:
        net, loss_of = whole_graph(way, kind, path)
    else:
        net, loss_of, together = part_of_graph(way, kind, path, parts)
    adam = torch.optim.Adam(net.parameters(), lr=0.005)
    seconds, losses = [], []
    for _ in range(int(epochs)):
        begin = time.perf_counter()
        adam.zero_grad()
        loss = loss_of()
        torch.autograd.backward(loss)
        together()
        adam.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"seconds_per_epoch": statistics.median(seconds[1:]), "loss": losses, "peak_memory_bytes": peak}
    sys.stdout.write(json.dumps(figures) + "\n")  # in one piece: the ranks share the pipe


if __name__ == "__main__":
    main()
