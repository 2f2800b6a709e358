"""Networks of MindSpore's own operators on a whole graph, in one process: what `own_mindspore.py` must be equal to.

plain_mindspore.py DATASET FOLDER OUTPUT.npz EPOCHS KIND... The arguments are those of own_mindspore.py.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import scipy.sparse as sp
from mindspore import Parameter, Tensor, nn, ops

from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.dropout import fill_mask, stream_keys

DTYPE = ms.float64


@dataclass(frozen=True)
class Edges:
    """Sources and targets, a weight of each edge or None, and the same edges with one loop at each node."""

    source: Tensor
    target: Tensor
    weight: Tensor | None
    looped: tuple[Tensor, Tensor]
    degrees: Tensor


def _zeros(*shape: int) -> Parameter:
    return Parameter(Tensor(np.zeros(shape)))


class GAT(nn.Cell):  # type: ignore[misc]
    """GATConv of PyG."""

    def __init__(self, width: int, out: int, heads: int, *, concat: bool = True) -> None:
        super().__init__()
        self.shape, self.concat = (-1, heads, out), concat
        self.lin = nn.Dense(width, heads * out, has_bias=False, dtype=DTYPE)
        self.att_src, self.att_dst = _zeros(1, heads, out), _zeros(1, heads, out)
        self.bias = _zeros(heads * out if concat else out)

    def construct(self, x: Tensor, edges: Edges) -> Tensor:
        """Attend to the in-neighbours; the scores are so small that no maximum is taken off."""
        source, target = edges.looped
        rows = self.lin(x).reshape(self.shape)
        scores = ops.gather((rows * self.att_src).sum(-1), source, 0)
        scores = scores + ops.gather((rows * self.att_dst).sum(-1), target, 0)
        shares = ops.exp(ops.maximum(scores, scores / 5))
        shares = shares / ops.gather(ops.unsorted_segment_sum(shares, target, len(x)), target, 0)
        out = ops.unsorted_segment_sum(shares.expand_dims(-1) * ops.gather(rows, source, 0), target, len(x))
        return (out.reshape(len(x), -1) if self.concat else out.mean(1)) + self.bias


class Mean(nn.Cell):  # type: ignore[misc]
    """SAGEConv or, with weights, GraphConv of PyG: a map of the neighbours' mean and one of the own row."""

    def __init__(self, width: int, out: int, *, weighted: bool) -> None:
        super().__init__()
        self.weighted = weighted
        of_neighbours, of_node = nn.Dense(width, out, dtype=DTYPE), nn.Dense(width, out, has_bias=False, dtype=DTYPE)
        if weighted:
            self.lin_rel, self.lin_root = of_neighbours, of_node
        else:
            self.lin_l, self.lin_r = of_neighbours, of_node

    def construct(self, x: Tensor, edges: Edges) -> Tensor:
        """Return (nodes, out)."""
        of_neighbours, of_node = (self.lin_rel, self.lin_root) if self.weighted else (self.lin_l, self.lin_r)
        messages = ops.gather(x, edges.source, 0)
        if self.weighted and edges.weight is not None:
            messages = messages * edges.weight.expand_dims(-1)
        return of_neighbours(ops.unsorted_segment_sum(messages, edges.target, len(x)) / edges.degrees) + of_node(x)


class BatchNorm(nn.Cell):  # type: ignore[misc]
    """Ioffe and Szegedy (ICML 2015), with PyTorch's momentum of 0.1 and eps of 1e-5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = _zeros(width), _zeros(width)
        self.running_mean, self.running_var = (Parameter(Tensor(np.zeros(width)), requires_grad=False) for _ in "mv")

    def construct(self, x: Tensor) -> Tensor:
        """Normalise the columns."""
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean = x.mean(0)
            variance = ((x - mean) * (x - mean)).mean(0)
            unbiased = variance.asnumpy() * (len(x) / (len(x) - 1))
            self.running_mean.set_data(Tensor(0.9 * self.running_mean.asnumpy() + 0.1 * mean.asnumpy()))
            self.running_var.set_data(Tensor(0.9 * self.running_var.asnumpy() + 0.1 * unbiased))
        return (x - mean) / (variance + Tensor(1e-5, DTYPE)).sqrt() * self.weight + self.bias


class Net(nn.Cell):  # type: ignore[misc]
    """The network of own_mindspore.py."""

    def __init__(self, kind: str, width: int, classes: int) -> None:
        super().__init__()
        if kind == "gat":
            self.first, self.last = GAT(width, 8, 2), GAT(16, classes, 3, concat=False)
        else:
            self.first, self.last = (Mean(*ends, weighted=kind == "weighted") for ends in ((width, 16), (16, classes)))
        self.norm = BatchNorm(16)

    def construct(self, x: Tensor, edges: Edges, epoch: int) -> Tensor:
        """Return one score for each class."""
        x = self.norm(ops.elu(self.first(x, edges)))
        if self.training:
            mask = np.empty(x.shape)
            fill_mask(mask, np.arange(len(x)), stream_keys(7, epoch, 0), 0.3)
            x = x * Tensor(mask)
        return self.last(x, edges)


class Adam:
    """Kingma and Ba (ICLR 2015), algorithm 1 with L2, as in PyTorch: MindSpore's keeps its rate in float32."""

    def __init__(self, parameters: list[Parameter], rate: float, decay: float) -> None:
        self.parameters, self.rate, self.decay, self.steps = parameters, rate, decay, 0
        self.moments = [(np.zeros(parameter.shape), np.zeros(parameter.shape)) for parameter in parameters]

    def __call__(self, gradients: tuple[Tensor, ...]) -> None:
        """Take one step."""
        self.steps += 1
        for parameter, (first, second), gradient in zip(self.parameters, self.moments, gradients, strict=True):
            slope = gradient.asnumpy() + self.decay * parameter.asnumpy()
            first[...] = 0.9 * first + 0.1 * slope
            second[...] = 0.999 * second + 0.001 * slope * slope
            root = np.sqrt(second / (1 - 0.999**self.steps)) + 1e-8
            parameter.set_data(Tensor(parameter.asnumpy() - self.rate / (1 - 0.9**self.steps) * first / root))


def train(kind: str, data: tuple[Any, ...], initial: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Return the losses, the final state and the scores."""
    x, y, mask, edges = data
    net = Net(kind, x.shape[1], int(y.max()) + 1)
    for name, parameter in net.parameters_and_names():
        parameter.set_data(Tensor(initial[f"{kind}.{name}"]))
    optimizer = Adam(net.trainable_params(), 0.005, 5e-4)

    def loss_of(epoch: int) -> Tensor:
        return ops.cross_entropy(net(x, edges, epoch)[mask], y[mask])

    step = ms.value_and_grad(loss_of, None, optimizer.parameters)
    net.set_train()
    losses = []
    for epoch in range(epochs):
        loss, gradients = step(epoch)
        optimizer(gradients)
        losses.append(float(loss))
    scores = net.set_train(False)(x, edges, 0).asnumpy()
    state = {f"{kind}.state.{name}": value.asnumpy() for name, value in net.parameters_and_names()}
    return {f"{kind}.losses": losses, f"{kind}.scores": scores, **state}


def main() -> None:
    """Train each kind."""
    dataset, folder, output, epochs, *kinds = sys.argv[1:]
    initial = dict(np.load(Path(folder, "initial.npz")))
    graph = open_dataset(dataset, Path(folder), None, 0, None).load()
    features = graph.features.toarray() if isinstance(graph.features, sp.csr_array) else graph.features
    source, target = (
        graph.indices.astype(np.int32),
        np.repeat(np.arange(graph.num_nodes, dtype=np.int32), graph.degrees),
    )
    others, nodes = source != target, np.arange(graph.num_nodes, dtype=np.int32)
    looped = [Tensor(np.concatenate((ends[others], nodes))) for ends in (source, target)]
    weight = None if graph.weights is None else Tensor(graph.weights.astype(float))
    degrees = Tensor(np.maximum(graph.degrees, 1).astype(float)).expand_dims(-1)
    edges = Edges(Tensor(source), Tensor(target), weight, (looped[0], looped[1]), degrees)
    data = (Tensor(features.astype(float)), Tensor(graph.labels.astype(np.int32)), Tensor(graph.split == 1), edges)
    found = {key: value for kind in kinds for key, value in train(kind, data, initial, int(epochs)).items()}
    np.savez(output, **found)


if __name__ == "__main__":
    main()
