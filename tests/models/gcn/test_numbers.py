"""The small pieces of the training: layers' order, weights, losses and metrics of each task, optimiser."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs_by_hand import make_graph, parts_of
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, count_decayed, initial_weights, plan_layers, views
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors
from unilaunch_gcn.objective import TrainingLoss, objective_of
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.exchange.meter import Meter
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


@pytest.mark.parametrize("options", [{}, {"bias": True, "layer_norm": True}], ids=["plain", "bias and norm"])
@pytest.mark.parametrize(("conv", "matrices"), [("gcn", 1), ("sage", 2)])
def test_l2_is_for_the_matrices_of_the_first_layer(
    conv: Literal["gcn", "sage"], matrices: int, options: dict[str, Any]
) -> None:
    """They stand in front of its bias and its norm, which L2 is not for."""
    layers = plan_layers(GcnSpec(layers=3, conv=conv, **options), 100, 7)
    assert count_decayed(layers) == matrices * 100 * 16
    assert all(parameter.name.endswith("weight") for parameter in layers[0].parameters[:matrices])


TASKS = ["classes", "multilabel", "regression", "several numbers"]
_DRAW = np.random.default_rng(0)
LABELS: dict[str, NDArray[Any]] = {
    "classes": np.arange(40) % 3,
    "multilabel": (_DRAW.random((40, 3)) < 0.4).astype(np.uint8),
    "regression": _DRAW.standard_normal(40).astype(np.float32),
    "several numbers": _DRAW.standard_normal((40, 3)).astype(np.float32),
}
TORCH = {
    "classes": torch.nn.CrossEntropyLoss(),
    "multilabel": torch.nn.BCEWithLogitsLoss(),
    "regression": torch.nn.MSELoss(),
    "several numbers": torch.nn.MSELoss(),
}


def _part(task: str, num_parts: int = 1) -> Part:
    ends = np.random.default_rng(3).integers(0, 40, (90, 2))
    plain = make_graph(40, [(int(a), int(b)) for a, b in ends])
    labels = LABELS[task].copy()
    if labels.dtype == np.float32:
        labels[0] = np.nan  # unknown, and in no split
    features = np.random.default_rng(1).random((40, 6), np.float32)
    graph = replace(plain, labels=labels, features=features, num_classes=1 if task == "regression" else 3)
    return parts_of(graph, np.zeros(40, np.int64), num_parts)[-1]


def _targets(part: Part, use: int, width: int) -> torch.Tensor:
    labels = torch.from_numpy(np.array(part.labels)[part.split == use])
    return labels if labels.dtype == torch.int64 else labels.double().reshape(-1, width)


@pytest.mark.parametrize("task", TASKS)
def test_the_training_loss_is_torchs_mean(task: str) -> None:
    """Value and gradient; also of scores so large that a naive formula overflows."""
    part = _part(task)
    objective = objective_of(part)
    scores = np.random.default_rng(2).standard_normal((40, objective.num_outputs)) * 300
    value, gradient = TrainingLoss(objective, part, scores.dtype).value_and_gradient(scores.copy())
    tensor = torch.from_numpy(scores).requires_grad_()
    expected = TORCH[task](tensor[part.split == TRAIN], _targets(part, TRAIN, objective.num_outputs))
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-12)
    assert tensor.grad is not None
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_metrics_are_the_textbooks(task: str) -> None:
    """Validation loss, accuracy, micro-F1, MAE and RMSE of each split; of an empty one nothing."""
    part = _part(task)
    objective = objective_of(part)
    scores = np.random.default_rng(2).standard_normal((40, objective.num_outputs))
    found = objective.metrics(objective.evaluate(scores, part), part.split_sizes)
    loss = TORCH[task](torch.from_numpy(scores[part.split == VAL]), _targets(part, VAL, objective.num_outputs))
    assert found["val_loss"] == pytest.approx(loss.item(), rel=1e-12)
    own, labels = scores[part.split == TEST], np.array(part.labels)[part.split == TEST]
    if task == "classes":
        assert found["test_accuracy"] == (own.argmax(axis=1) == labels).mean()
    elif task == "multilabel":
        said, has = own > 0, labels > 0
        precision, recall = (said & has).sum() / said.sum(), (said & has).sum() / has.sum()
        assert found["test_micro_f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    else:
        errors = own - labels.reshape(own.shape)
        assert found["test_mae"] == pytest.approx(np.abs(errors).mean())
        assert found["test_rmse"] == pytest.approx((errors**2).mean() ** 0.5)
    sizes = (part.split_sizes[0], 0, part.split_sizes[2])
    counts = objective.evaluate(scores, replace(part, split=np.where(part.split == VAL, 0, part.split)))
    empty = objective.metrics(counts, sizes)
    assert {value for name, value in empty.items() if name.startswith("val")} == {None}


@pytest.mark.parametrize("task", TASKS)
def test_a_part_without_nodes_adds_nothing(task: str) -> None:
    """Neither to the loss nor to the counts, and nothing warns."""
    part = _part(task, 2)
    objective = objective_of(part)
    scores = np.zeros((0, objective.num_outputs), np.float32)
    loss, gradient = TrainingLoss(objective, part, scores.dtype).value_and_gradient(scores)
    assert (loss, gradient.shape) == (0.0, scores.shape)
    assert not objective.evaluate(scores, part).any()


@pytest.mark.parametrize("task", TASKS)
def test_a_device_trains_each_task_alike(task: str) -> None:
    """Loss, gradient and evaluation on tensors of either framework are those of the host's arrays: to 1e-12."""
    part, spec = _part(task), GcnSpec(hidden=4)
    config = NetworkConfig(plan_layers(spec, 6, part.num_classes), 0.5, 2, np.dtype(np.float64))
    host = HostNetwork(host_problem(Alone(), 1, config, part, Meter()), TorchTensors())
    for tensors in (TorchDeviceTensors("cpu"), MindSporeDeviceTensors()):
        other = device_network(config, part, tensors, Alone(), Meter())
        np.testing.assert_allclose(np.asarray(other.local(other.gradient(3))), host.gradient(3), rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.asarray(other.local(other.evaluate())), host.evaluate(), rtol=1e-6)
