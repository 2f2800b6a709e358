"""The three tasks: losses, gradients and metrics are those of torch and of the textbook, on arrays and on tensors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs_by_hand import make_graph
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors
from unilaunch_gcn.objective import TrainingLoss, objective_of
from unilaunch_gcn.report import LAYOUT
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

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


def _part(task: str) -> Part:
    ends = np.random.default_rng(3).integers(0, 40, (90, 2))
    plain = make_graph(40, [(int(a), int(b)) for a, b in ends])
    labels = LABELS[task].copy()
    if labels.dtype == np.float32:
        labels[0] = np.nan  # unknown, and in no split
    features = np.random.default_rng(1).random((40, 6), np.float32)
    graph = replace(plain, labels=labels, features=features, num_classes=1 if task == "regression" else 3)
    return next(split_parts(graph, order_nodes(graph, np.zeros(40, np.int64), 1)))


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
def test_the_report_shows_each_tasks_metrics(task: str) -> None:
    """As curves, and at the end; the validation loss, by which the best model is chosen, as a curve."""
    part = _part(task)
    objective = objective_of(part)
    counts = objective.evaluate(np.zeros((40, part.num_classes)), part)
    metrics = {*objective.metrics(counts, part.split_sizes)}
    assert metrics <= {value.key for plot in LAYOUT.plots for value in plot.curves}
    assert metrics - {"val_loss"} <= {value.key for value in LAYOUT.figures}


@pytest.mark.parametrize("task", TASKS)
def test_four_networks_train_each_task_alike(task: str) -> None:
    """Loss, gradient and evaluation on both frameworks, on hosts and on devices: to 1e-12."""
    part, spec = _part(task), GcnSpec(hidden=4)
    config = NetworkConfig(plan_layers(spec, 6, part.num_classes), 0.5, 2, np.dtype(np.float64))
    problem = host_problem(Alone(), 1, config, part, Meter())
    first = HostNetwork(problem, TorchTensors())
    gradient, counts = first.gradient(3), first.evaluate()
    assert np.isfinite(gradient).all()
    devices = (TorchDeviceTensors("cpu"), MindSporeDeviceTensors())
    others = [device_network(config, part, tensors, Alone(), Meter()) for tensors in devices]
    for other in (HostNetwork(problem, MindSporeTensors()), *others):
        np.testing.assert_allclose(np.asarray(other.local(other.gradient(3))), gradient, rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.asarray(other.local(other.evaluate())), counts, rtol=1e-6)
