"""An independent reference: the GCN in one process, by PyTorch's own functions on dense float64 matrices.

It shares with the project only what defines the experiment: the graph, the initial weights and the dropout masks.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from unilaunch_gcn.layers import Layer, Parameter, initial_weights, views
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.dropout import fill_mask, stream_keys


class Reference(NamedTuple):
    """What the reference training leaves."""

    losses: list[float]
    weights: list[NDArray[np.float64]]
    logits: NDArray[np.float64]


def train_reference(
    graph: Graph, widths: list[int], *, epochs: int, dropout: float, seed: int, lr: float = 0.01, decay: float = 5e-4
) -> Reference:
    """Train by the textbook: A_hat, softmax cross entropy over the training nodes, Adam with L2 on layer 1."""
    adjacency, train = _normalised(graph), torch.from_numpy(graph.split == TRAIN)
    given: Any = graph.features
    features = torch.tensor(given.toarray() if sp.issparse(given) else given, dtype=torch.float64)
    layers = [Layer(0, 0, "", 0, 0, (Parameter("weight", pair, "glorot"),)) for pair in pairwise(widths)]
    initial = views(initial_weights(layers, seed, np.dtype(np.float64)), layers)
    weights = [torch.tensor(array, requires_grad=True) for array in initial]

    def forward(epoch: int, dropout: float) -> torch.Tensor:
        hidden = features
        for depth, weight in enumerate(weights):
            mask = np.ones(hidden.shape)
            if dropout:
                fill_mask(mask, np.arange(len(mask)), stream_keys(seed, epoch, depth), dropout)
            hidden = torch.relu(hidden) if depth else hidden
            hidden = adjacency @ (hidden * torch.from_numpy(mask) @ weight)
        return hidden

    groups: list[dict[str, Any]] = [{"params": weights[:1], "weight_decay": decay}, {"params": weights[1:]}]
    optimizer, losses = torch.optim.Adam(groups, lr=lr), []
    for epoch in range(epochs):
        loss = cross_entropy(forward(epoch, dropout)[train], torch.tensor(graph.labels).long()[train])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return Reference(losses, [weight.detach().numpy() for weight in weights], forward(0, 0).numpy())


def _normalised(graph: Graph) -> torch.Tensor:
    """Return D^-1/2 (A + I) D^-1/2, with the graph's own weights and loops where it has any."""
    weights = np.ones(len(graph.indices)) if graph.weights is None else graph.weights
    loops = np.ones(graph.num_nodes) if graph.loops is None else graph.loops
    shape = graph.num_nodes, graph.num_nodes
    adjacency = sp.csr_array((weights, graph.indices, graph.indptr), shape).toarray() + np.diag(
        loops.astype(np.float64)
    )
    scale = adjacency.sum(axis=1) ** -0.5
    return torch.from_numpy(scale[:, None] * adjacency * scale)
