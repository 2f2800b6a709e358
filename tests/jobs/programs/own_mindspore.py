"""Train networks of MindSpore on this rank's part of a graph: own_mindspore.py DATASET FOLDER OUTPUT.npz EPOCHS KIND...

The data folder FOLDER has initial.npz with the initial weights ("gat.first.lin.weight"). The kind "lonely" is "plain"
on other parts, the last of which has no edge; the data set must be a file for it. Rank 0 writes what came out.
"""

import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import unilaunch_graph as ug
from unilaunch_graph.data.files import read_graph
from unilaunch_graph.mindspore.part import make_part
from unilaunch_graph.partition.cut import order_nodes, split_parts

DTYPE = ms.float64
M = ug.mindspore


class PlainGAT(nn.Cell):  # type: ignore[misc]
    """GATConv without self-loops, as a user writes it; its slope is 0.25: MindSpore rounds Python's to float32."""

    def __init__(self, width_in: int, width_out: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width_out
        self.lin = nn.Dense(width_in, heads * width_out, has_bias=False, dtype=DTYPE)
        self.att_src, self.att_dst = (Parameter(Tensor(np.zeros((1, heads, width_out)))) for _ in range(2))
        self.bias = Parameter(Tensor(np.zeros(heads * width_out)))

    def construct(self, x: Tensor, part: M.GraphPart) -> Tensor:
        source, target = part.edge_index
        own = self.lin(x).reshape(-1, self.heads, self.width)
        rows = M.halo(own, part)
        scores = ops.gather((rows * self.att_src).sum(-1), source, 0)
        scores = scores + ops.gather((own * self.att_dst).sum(-1), target, 0)
        shares = M.segment_softmax(ops.leaky_relu(scores, 0.25), part)
        out = M.segment_sum(shares.expand_dims(-1) * ops.gather(rows, source, 0), part)
        return out.reshape(-1, self.heads * self.width) + self.bias


class WeightedMean(nn.Cell):  # type: ignore[misc]
    """GraphConv of PyG: lin_rel(mean of the in-neighbours' rows times the edges' weights) + lin_root(own row)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.lin_rel = nn.Dense(width_in, width_out, dtype=DTYPE)
        self.lin_root = nn.Dense(width_in, width_out, has_bias=False, dtype=DTYPE)

    def construct(self, x: Tensor, part: M.GraphPart) -> Tensor:
        messages = ops.gather(M.halo(x, part), part.edge_index[0], 0)
        if part.edge_weight is not None:
            messages = messages * part.edge_weight.astype(DTYPE).expand_dims(-1)
        return self.lin_rel(M.segment_mean(messages, part)) + self.lin_root(x)


# fmt: off
#: The two layers of each kind of network, by the width of the features and the number of classes.
LAYERS: dict[str, Any] = {
    "gat": lambda a, c: (
        M.GATConv(a, 8, heads=2, dtype=DTYPE), M.GATConv(16, c, heads=3, concat=False, dtype=DTYPE)),
    "plain": lambda a, c: (PlainGAT(a, 8, 2), PlainGAT(16, c, 1)),
    "sage": lambda a, c: (M.SAGEConv(a, 16, dtype=DTYPE), M.SAGEConv(16, c, dtype=DTYPE)),
    "edges": lambda a, c: (
        M.GATConv(a, 8, heads=2, edge_dim=3, residual=True, dtype=DTYPE),
        M.GATConv(16, c, heads=2, concat=False, edge_dim=3, fill_value=0.5, dtype=DTYPE)),
    "project": lambda a, c: (
        M.SAGEConv(a, 16, normalize=True, project=True, dtype=DTYPE),
        M.SAGEConv(16, c, "add", project=True, bias=False, dtype=DTYPE)),
    "weighted": lambda a, c: (WeightedMean(a, 16), WeightedMean(16, c)),
}
# fmt: on


class Net(nn.Cell):  # type: ignore[misc]
    def __init__(self, kind: str, part: M.GraphPart) -> None:
        super().__init__()
        self.part = part
        self.first, self.last = LAYERS[kind](part.num_features, part.num_classes)
        self.norm = M.BatchNorm(16, part, dtype=DTYPE)

    def construct(self, x: Tensor, epoch: int) -> Tensor:
        x = self.norm(ops.elu(self.first(x, self.part)))
        x = M.dropout(x, self.part, 0.3, seed=7, step=epoch, training=self.training)
        return self.last(x, self.part)


def train(kind: str, part: M.GraphPart) -> dict[str, Any]:
    net = Net(kind, part)
    for name, parameter in net.parameters_and_names():
        parameter.set_data(Tensor(initial[f"{kind}.{name}"]))
    optimizer = M.Adam(net.trainable_params(), 0.005, 5e-4)
    x = part.x.astype(DTYPE)

    def loss_of(epoch: int) -> Tensor:
        out, mask = net(x, epoch), part.train_mask
        return M.mean(ops.cross_entropy(out[mask], part.y[mask], reduction="none"), part.num_train)

    step = ms.value_and_grad(loss_of, None, optimizer.parameters)
    net.set_train()
    losses = []
    for epoch in range(int(epochs)):
        loss, gradients = step(epoch)
        optimizer(M.sum_gradients(gradients))
        losses.append(float(loss))
    net.set_train(False)
    scores = M.gather(net(x, 0), part)
    state = {f"{kind}.state.{name}": value.asnumpy() for name, value in net.parameters_and_names()}
    return {f"{kind}.losses": losses, f"{kind}.scores": None if scores is None else scores.asnumpy(), **state}


def lonely(part: M.GraphPart) -> M.GraphPart:
    """Return a part of another partition: the last rank owns the nodes without an edge, and nothing else."""
    graph = read_graph(Path(dataset), 0)
    has_edge = np.diff(graph.indptr) > 0
    has_edge[graph.indices] = True
    others = max(part.world_size - 1, 1)
    owner = np.where(has_edge, np.arange(graph.num_nodes) % others, part.world_size - 1)
    parts = split_parts(graph, order_nodes(graph, owner, part.world_size), [part.rank])
    return make_part(next(parts), part.ranks)


dataset, folder, output, epochs, *kinds = sys.argv[1:]
initial = dict(np.load(Path(folder, "initial.npz")))
part = M.load(dataset, data_dir=folder)
found: dict[str, Any] = {}
for kind in kinds:
    if kind == "lonely":
        found |= {f"lonely.{key}": value for key, value in train("plain", lonely(part)).items()}
    else:
        found |= train(kind, part)
if part.rank == 0:
    np.savez(output, **found)
