"""An independent reference: the GCN in one process, in scipy's float64 matrices and with gradients written by hand.

It shares with the project only what defines the experiment: the graph, the initial weights and the dropout masks.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_gcn.layers import Layer, Parameter, initial_weights, views
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.dropout import fill_mask, stream_keys

Matrix = NDArray[np.float64]


class Reference(NamedTuple):
    """What the reference training leaves."""

    losses: list[float]
    weights: list[Matrix]
    logits: Matrix


def train_reference(
    graph: Graph, widths: list[int], *, epochs: int, dropout: float, seed: int, lr: float = 0.01, decay: float = 5e-4
) -> Reference:
    """Train by the textbook: A_hat, softmax cross entropy over the training nodes, Adam with L2 on layer 1."""
    adjacency, features = _normalised(graph), graph.features.astype(np.float64)
    layers = [Layer(0, 0, "", 0, 0, (Parameter("weight", pair, "glorot"),)) for pair in pairwise(widths)]
    weights = [w.copy() for w in views(initial_weights(layers, seed, np.dtype(np.float64)), layers)]
    first, second = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    losses = []
    for epoch in range(epochs):
        loss, gradients = _loss_and_gradients(graph, adjacency, features, weights, (seed, epoch, dropout))
        losses.append(loss)
        gradients[0] += decay * weights[0]
        for weight, gradient, m, v in zip(weights, gradients, first, second, strict=True):
            m[:] = 0.9 * m + 0.1 * gradient
            v[:] = 0.999 * v + 0.001 * gradient**2
            corrected_m, corrected_v = m / (1 - 0.9 ** (epoch + 1)), v / (1 - 0.999 ** (epoch + 1))
            weight[:] = weight - lr * corrected_m / (np.sqrt(corrected_v) + 1e-8)
    return Reference(losses, weights, _forward(adjacency, features, weights, (seed, epochs, 0.0))[2])


def _normalised(graph: Graph) -> sp.csr_array:
    adjacency = np.diag(np.ones(graph.num_nodes) if graph.loops is None else graph.loops.astype(np.float64))
    for node in range(graph.num_nodes):
        edges = slice(graph.indptr[node], graph.indptr[node + 1])
        adjacency[node, graph.indices[edges]] = 1.0 if graph.weights is None else graph.weights[edges]
    scale = adjacency.sum(axis=1) ** -0.5
    return sp.csr_array(scale[:, None] * adjacency * scale[None, :])


def _forward(
    adjacency: sp.csr_array, hidden: Any, weights: list[Matrix], draw: tuple[int, int, float]
) -> tuple[list[Any], list[Matrix], Matrix]:
    """Return what enters each layer, its dropout mask, and the logits."""
    (seed, epoch, dropout), inputs, masks = draw, [], []
    for depth, weight in enumerate(weights):
        masks.append(np.ones(hidden.shape))
        if dropout:
            fill_mask(masks[-1], np.arange(len(masks[-1])), stream_keys(seed, epoch, depth), dropout)
        inputs.append(hidden.multiply(masks[-1]).tocsr() if sp.issparse(hidden) else hidden * masks[-1])
        hidden = adjacency @ (inputs[-1] @ weight)
        hidden = np.maximum(hidden, 0) if depth + 1 < len(weights) else hidden
    return inputs, masks, hidden


def _loss_and_gradients(
    graph: Graph, adjacency: sp.csr_array, features: Any, weights: list[Matrix], draw: tuple[int, int, float]
) -> tuple[float, list[Matrix]]:
    inputs, masks, hidden = _forward(adjacency, features, weights, draw)
    train = np.flatnonzero(graph.split == TRAIN)
    shifted = hidden[train] - hidden[train].max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    one_hot = np.eye(graph.num_classes)[graph.labels[train]]
    loss = -float((log_softmax * one_hot).sum()) / len(train)
    upstream = np.zeros_like(hidden)
    upstream[train] = (np.exp(log_softmax) - one_hot) / len(train)
    gradients = []
    for depth in reversed(range(len(weights))):
        aggregated = adjacency.T @ upstream
        gradients.append(inputs[depth].T @ aggregated)
        if depth:
            upstream = aggregated @ weights[depth].T * masks[depth] * (inputs[depth] > 0)
    return loss, gradients[::-1]
