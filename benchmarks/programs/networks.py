"""Train one network on the benchmark graph and print figures as JSON, one line for each rank. For own_models.py.

    python benchmarks/programs/networks.py WAY KIND GRAPH.npz PARTS EPOCHS

WAY: pyg, csr: PyG's layers on the whole graph in one process, on edge_index or on torch's CSR matrix. distribute: the
same layers on this rank's part; compiled: these by torch.compile; folded: see `Batched`. own: unilaunch's layers.
KIND: gat, gatv2, transformer, sage, gin; links: GraphSAGE, with a loss on pairs of nodes; tutorial: the layer of PyG's
tutorial; batched: means of rows in three dimensions. The seconds are the median of the epochs but the first.
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
#: Layers of attention by kind.
ATTENTION = {"gat": "GATConv", "gatv2": "GATv2Conv", "transformer": "TransformerConv"}


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


class Batched(torch.nn.Module):
    """A linear layer, and the mean of its rows of all in-neighbours in *batch* samples of 16 columns.

    PyG's layers take rows of shape (batch, nodes, 16). Folded by hand, a node's samples stand side by side in one row:
    (nodes, batch * 16).
    """

    def __init__(self, width: int, out: int, batch: int, *, folded: bool) -> None:
        from torch_geometric.nn import SimpleConv

        super().__init__()
        self.linear, self.mean = torch.nn.Linear(width, out), SimpleConv(aggr="mean")
        self.batch, self.folded = batch, folded

    @override
    def forward(self, rows: torch.Tensor, edges: Any) -> torch.Tensor:
        """Return the means. (nodes, out)"""
        samples = self.linear(rows).unflatten(-1, (self.batch, -1)).movedim(1, 0)
        if self.folded:
            means: torch.Tensor = self.mean(samples.movedim(0, 1).flatten(1), edges)
            return means
        wide: torch.Tensor = self.mean(samples.contiguous(), edges)
        return wide.movedim(0, 1).flatten(1)


def make_tutorial_layer(width: int, out: int) -> torch.nn.Module:
    """Return the GCN layer whose message is a coefficient of the edge times `x_j`, as PyG's tutorial makes one."""
    from torch_geometric.nn import MessagePassing
    from torch_geometric.utils import add_self_loops, degree

    class Layer(MessagePassing):  # type: ignore[misc]  # PyG ships no types
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.linear = torch.nn.Linear(width, out)

        @override
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edge_index
            scale = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
            return self.propagate(edge_index, x=self.linear(x), norm=scale[row] * scale[col])

        @override
        def message(self, x_j: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
            return norm.view(-1, 1) * x_j

    return Layer()


def make_net(kind: str, layers: Any, width: int, *, folded: bool = False) -> Net:
    """Return the network; attention has 8 heads of 16 and then one of 40, as the benchmark's figures are about."""
    torch.manual_seed(0)
    if kind in ATTENTION:
        layer = getattr(layers, ATTENTION[kind])
        return Net(layer(width, HIDDEN // 8, heads=8), layer(HIDDEN, CLASSES))
    if kind == "tutorial":
        return Net(make_tutorial_layer(width, HIDDEN), make_tutorial_layer(HIDDEN, CLASSES))
    if kind == "batched":
        return Net(Batched(width, HIDDEN, 8, folded=folded), Batched(HIDDEN, CLASSES, 8, folded=folded))
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
    if way == "own":
        edges: Any = part
        net: torch.nn.Module = make_net(kind, ug.torch, part.num_features)
    else:
        from torch_geometric import nn

        edges = part.edge_index
        net = ug.torch.distribute(make_net(kind, nn, part.num_features, folded=way == "folded"), part)
        if way == "compiled":
            net.compile()

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
