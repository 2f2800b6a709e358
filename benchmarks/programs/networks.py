"""Train one network on the benchmark graph and print figures as JSON, one line for each rank. For own_models.py.

    python benchmarks/programs/networks.py {pyg,csr,distribute,own} {gat,sage,gin,links} GRAPH.npz PARTS EPOCHS

pyg, csr: PyG's layers on the whole graph in one process, on edge_index or on torch's CSR matrix. distribute: the same
layers on this rank's part. links: GraphSAGE, with a loss on pairs of nodes. own: unilaunch's layers. The seconds are
the median of the epochs but the first.
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
PAIRS = 1_000_000


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
    if kind in {"sage", "links"}:
        return Net(layers.SAGEConv(width, HIDDEN), layers.SAGEConv(HIDDEN, CLASSES))
    linear = torch.nn.Linear
    inner = torch.nn.Sequential(linear(width, HIDDEN), torch.nn.ReLU(), linear(HIDDEN, HIDDEN))
    return Net(layers.GINConv(inner), layers.GINConv(linear(HIDDEN, CLASSES)))


def loss_of_pairs(ends: torch.Tensor, of_rank: slice) -> torch.Tensor:
    """Return the loss of each pair of a rank: in turn, the two are linked and not. *ends* is (2, pairs, width)."""
    source, target = ends
    is_link = (torch.arange(PAIRS) % 2 == 0)[of_rank]
    return F.binary_cross_entropy_with_logits((source * target).sum(-1), is_link.float(), reduction="none")


def make_pairs(num_nodes: int) -> torch.Tensor:
    """Return the ids of both nodes of each pair, the same ones on every rank. (2, PAIRS)"""
    return torch.randint(num_nodes, (2, PAIRS), generator=torch.Generator().manual_seed(0))


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
    if kind == "links":
        pairs = make_pairs(len(x))
        return net, lambda: loss_of_pairs(net(x, edges)[pairs], slice(None)).mean()
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

    share = slice(part.rank, None, part.world_size)
    pairs = make_pairs(part.num_nodes)[:, share]

    def loss_of_links() -> torch.Tensor:
        ends = ug.torch.fetch(net(part.x, edges), pairs, part)
        total: torch.Tensor = ug.torch.mean(loss_of_pairs(ends, share), PAIRS, part)
        return total

    def loss_of() -> torch.Tensor:
        scores = net(part.x, edges)[part.train_mask]
        loss = F.cross_entropy(scores, part.y[part.train_mask], reduction="sum")
        total: torch.Tensor = ug.torch.mean(loss, part.num_train, part)
        return total

    return net, loss_of_links if kind == "links" else loss_of, lambda: ug.torch.sum_gradients(net, part)


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
