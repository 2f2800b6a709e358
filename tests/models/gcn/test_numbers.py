"""The small pieces of the training: layers' order, weights, loss, optimiser, counts."""

from typing import Any, Literal

import numpy as np
import pytest
import torch

from graphs_by_hand import make_graph
from unilaunch_gcn.aggregation import node_scales
from unilaunch_gcn.layers import count_decayed, initial_weights, plan_layers, views
from unilaunch_gcn.objective import TrainingLoss, objective_of
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [("product first", 2, 16), ("product first", 2, 7)]),
        ({"dropout": 0}, [("aggregated once", 0, 0), ("product first", 2, 7)]),
        ({"hidden": 200}, [("aggregation first", 1, 100), ("product first", 2, 7)]),
        ({"hidden": 5, "layers": 3}, [("product first", 2, 5), ("product first", 2, 5), ("aggregation first", 2, 5)]),
        ({"layers": 1, "dropout": 0}, [("aggregated once", 0, 0)]),
    ],
    ids=["the paper's", "no dropout", "wide hidden", "narrow hidden", "one layer"],
)
def test_each_layer_exchanges_its_narrower_side(options: dict[str, Any], expected: list[tuple[str, int, int]]) -> None:
    """Order, exchanges and their width."""
    layers = plan_layers(GcnSpec(**options), 100, 7)
    assert [(layer.order, layer.exchanges, layer.width) for layer in layers] == expected


def test_weights_are_glorots_and_always_the_same() -> None:
    """Within the bound, filling it, and another draw for each layer and seed."""
    layers = plan_layers(GcnSpec(layers=3, hidden=64), 64, 64)
    flat = initial_weights(layers, 5, np.dtype(np.float64))
    np.testing.assert_array_equal(flat, initial_weights(layers, 5, np.dtype(np.float64)))
    first, second, _ = views(flat, layers)
    assert np.abs(flat).max() == pytest.approx((6 / 128) ** 0.5, rel=1e-2)
    assert first.std() == pytest.approx((6 / 128) ** 0.5 / 3**0.5, rel=0.05)
    assert not np.array_equal(first, second)
    assert not np.array_equal(flat, initial_weights(layers, 6, np.dtype(np.float64)))
    first[0, 0] = 7.0
    assert flat[0] == 7.0


def test_a_hat_is_the_papers() -> None:
    """D^-1/2 (A + I) D^-1/2 of a path of three nodes and an isolated one."""
    graph = make_graph(4, [(0, 1), (1, 2)])
    scales = node_scales("gcn", graph.strengths, np.ones(4, np.float32))
    assert scales.left is scales.right
    np.testing.assert_allclose(scales.left**2, [1 / 2, 1 / 3, 1 / 2, 1])
    np.testing.assert_array_equal(scales.loops, np.ones(4))


def test_the_mean_of_no_neighbours_is_nothing() -> None:
    """GraphSAGE's: rows sum to 1, an isolated node's to 0; the node itself does not count."""
    graph = make_graph(4, [(0, 1), (1, 2)])
    scales = node_scales("sage", graph.strengths, np.ones(4, np.float32))
    np.testing.assert_allclose(scales.left * graph.strengths, [1, 1, 1, 0])
    assert not scales.loops.any()


def _part(num_train: int) -> Part:
    graph = make_graph(9, [(0, 1)])
    split = np.full(9, VAL, np.uint8)
    split[:num_train] = TRAIN
    split[7:] = TEST
    graph = type(graph)(graph.indptr, graph.indices, graph.features, np.arange(9) % 3, split, 3)
    return next(split_parts(graph, order_nodes(graph, np.zeros(9, np.int64), 1)))


@pytest.mark.parametrize("num_train", [0, 1, 5])
def test_loss_is_torchs_cross_entropy(num_train: int) -> None:
    """Value and gradient; without training nodes exactly nothing, and no NaN."""
    part = _part(num_train)
    logits = np.random.default_rng(0).standard_normal((9, 3)) * 30
    loss, gradient = TrainingLoss(objective_of(part), part, logits.dtype).value_and_gradient(logits.copy())
    tensor = torch.from_numpy(logits).requires_grad_()
    labels = torch.from_numpy(part.labels)[:num_train]
    expected = torch.nn.functional.cross_entropy(tensor[:num_train], labels, reduction="sum") / max(1, num_train)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), abs=1e-13)
    assert tensor.grad is not None
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=0, atol=1e-15)


def test_counts_and_validation_loss() -> None:
    """Against the plain loop."""
    part = _part(3)
    logits = np.random.default_rng(1).standard_normal((9, 3)).astype(np.float32)
    right = [sum(logits[i].argmax() == part.labels[i] for i in range(9) if part.split[i] == use) for use in (1, 2, 3)]
    loss = -sum(
        np.log(np.exp(np.float64(logits[i])) / np.exp(np.float64(logits[i])).sum())[part.labels[i]]
        for i in range(9)
        if part.split[i] == VAL
    )
    np.testing.assert_allclose(objective_of(part).evaluate(logits, part), [*right, loss], rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"bias": True, "layer_norm": True}], ids=["plain", "bias and norm"])
@pytest.mark.parametrize(("conv", "matrices"), [("gcn", 1), ("sage", 2)])
def test_l2_is_for_the_matrices_of_the_first_layer(
    conv: Literal["gcn", "sage"], matrices: int, options: dict[str, Any]
) -> None:
    """They stand in front of its bias and its norm, which L2 is not for."""
    layers = plan_layers(GcnSpec(layers=3, conv=conv, **options), 100, 7)
    assert count_decayed(layers) == matrices * 100 * 16
    assert all(parameter.name.endswith("weight") for parameter in layers[0].parameters[:matrices])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_adam_is_torchs(kind: str) -> None:
    """Fifty steps with L2 on the first weights, to 1e-12."""
    draw = np.random.default_rng(2)
    start, gradients = draw.standard_normal(10), draw.standard_normal((50, 10))
    decayed, free = (
        torch.from_numpy(start[:4].copy()).requires_grad_(),
        torch.from_numpy(start[4:].copy()).requires_grad_(),
    )
    groups: list[dict[str, Any]] = [{"params": [decayed], "weight_decay": 0.1}, {"params": [free]}]
    theirs = torch.optim.Adam(groups, lr=0.05)
    flat: Any = start.copy() if kind == "numpy" else torch.from_numpy(start.copy())
    ours = Adam(flat, flat * 0.0, 0.05, 0.1, 4)
    for gradient in gradients:
        decayed.grad, free.grad = torch.from_numpy(gradient[:4].copy()), torch.from_numpy(gradient[4:].copy())
        theirs.step()
        ours.step(gradient.copy() if kind == "numpy" else torch.from_numpy(gradient.copy()))
    np.testing.assert_allclose(np.asarray(flat), torch.cat([decayed, free]).detach().numpy(), rtol=0, atol=1e-12)


def test_no_owned_node_is_no_loss_and_no_answer() -> None:
    """An empty part adds exactly nothing, and nothing warns."""
    graph = make_graph(3, [(0, 1)])
    empty = list(split_parts(graph, order_nodes(graph, np.zeros(3, np.int64), 2)))[1]
    logits = np.zeros((0, 2), np.float32)
    loss, gradient = TrainingLoss(objective_of(empty), empty, logits.dtype).value_and_gradient(logits)
    assert (loss, gradient.shape) == (0.0, (0, 2))
    np.testing.assert_array_equal(objective_of(empty).evaluate(logits, empty), [0, 0, 0, 0])
