"""The small pieces of the training: layers' order, weights, losses and metrics of each task, finite numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs_by_hand import parts_of, random_graph
from unilaunch.errors import DivergedError
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, count_decayed, initial_weights, plan_layers, views
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors
from unilaunch_gcn.objective import TrainingLoss, objective_of
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_gcn.training import refuse_infinite_weights
from unilaunch_graph.data.graph import TEST, TRAIN, VAL
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part

F64 = np.dtype(np.float64)


def test_weights_are_glorots_and_always_the_same() -> None:
    """Within the bound, filling it, and another draw for each layer and seed."""
    layers = plan_layers(GcnSpec(layers=3, hidden=64), 64, 64)
    flat = initial_weights(layers, 5, F64)
    np.testing.assert_array_equal(flat, initial_weights(layers, 5, F64))
    first, second, _ = views(flat, layers)
    assert np.abs(flat).max() == pytest.approx((6 / 128) ** 0.5, rel=1e-2)
    assert first.std() == pytest.approx((6 / 128) ** 0.5 / 3**0.5, rel=0.05)
    assert not np.array_equal(first, second)
    assert not np.array_equal(flat, initial_weights(layers, 6, F64))


@pytest.mark.parametrize(("conv", "matrices"), [("gcn", 1), ("sage", 2)])
def test_l2_is_for_the_matrices_of_the_first_layer(conv: Any, matrices: int) -> None:
    """They stand in front of its bias and its norm, which L2 is not for."""
    layers = plan_layers(GcnSpec(layers=3, conv=conv, bias=True, layer_norm=True), 100, 7)
    assert count_decayed(layers) == matrices * 100 * 16
    assert all(parameter.name.endswith("weight") for parameter in layers[0].parameters[:matrices])


_DRAW = np.random.default_rng(0)
#: Labels of each task, and torch's loss. Some of a regression are unknown, and in no split.
TASKS: dict[str, tuple[NDArray[Any], Any]] = {
    "classes": (np.arange(40) % 3, torch.nn.CrossEntropyLoss()),
    "multilabel": ((_DRAW.random((40, 3)) < 0.4).astype(np.uint8), torch.nn.BCEWithLogitsLoss()),
    "regression": (np.append(np.nan, _DRAW.standard_normal(39)).astype(np.float32), torch.nn.MSELoss()),
    "several numbers": (np.vstack([[np.nan] * 3, _DRAW.random((39, 3))]).astype(np.float32), torch.nn.MSELoss()),
}
each_task = pytest.mark.parametrize("task", TASKS)


def _part(task: str, num_parts: int = 1) -> Part:
    graph = replace(random_graph(40, 90, 6), labels=TASKS[task][0], num_classes=1 if task == "regression" else 3)
    return parts_of(graph, np.zeros(40, np.int64), num_parts)[-1]


def _loss(task: str, part: Part, scores: torch.Tensor, use: int) -> torch.Tensor:
    labels = torch.from_numpy(np.array(part.labels)[part.split == use])
    labels = labels if task == "classes" else labels.double().reshape(len(labels), -1)
    return torch.as_tensor(TASKS[task][1](scores[part.split == use], labels))


@each_task
def test_the_training_loss_is_torchs_mean(task: str) -> None:
    """Value and gradient; also of scores so large that a naive formula overflows. Nothing of a part without nodes."""
    part, empty = _part(task), _part(task, 2)
    objective = objective_of(part)
    scores = np.random.default_rng(2).standard_normal((40, objective.num_outputs)) * 300
    value, gradient = TrainingLoss(objective, part, F64).value_and_gradient(scores.copy())
    tensor = torch.from_numpy(scores).requires_grad_()
    expected = _loss(task, part, tensor, TRAIN)
    torch.autograd.backward(expected)
    assert value == pytest.approx(expected.item(), rel=1e-12)
    assert tensor.grad is not None
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=0, atol=1e-12)
    value, gradient = TrainingLoss(objective_of(empty), empty, F64).value_and_gradient(scores[:0])
    assert (value, gradient.shape) == (0.0, scores[:0].shape)
    assert not objective_of(empty).evaluate(scores[:0], empty).any()


@each_task
def test_metrics_are_the_textbooks(task: str) -> None:
    """Validation loss, accuracy, micro-F1, MAE and RMSE of each split; of an empty one nothing."""
    part = _part(task)
    objective = objective_of(part)
    scores = np.random.default_rng(2).standard_normal((40, objective.num_outputs))
    found = objective.metrics(objective.evaluate(scores, part), part.split_sizes)
    assert found["val_loss"] == pytest.approx(_loss(task, part, torch.from_numpy(scores), VAL).item(), rel=1e-12)
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
    counts = objective.evaluate(scores, replace(part, split=np.where(part.split == VAL, 0, part.split)))
    empty = objective.metrics(counts, (part.split_sizes[0], 0, part.split_sizes[2]))
    assert {value for name, value in empty.items() if name.startswith("val")} == {None}


@each_task
def test_a_device_trains_each_task_alike(task: str) -> None:
    """Loss, gradient and evaluation on tensors of either framework are those of the host's arrays: to 1e-12."""
    part, spec = _part(task), GcnSpec(hidden=4)
    config = NetworkConfig(plan_layers(spec, 6, part.num_classes), 0.5, 2, F64)
    host = HostNetwork(host_problem(Alone(), 1, config, part, Meter()), TorchTensors())
    for tensors in (TorchDeviceTensors("cpu"), MindSporeDeviceTensors()):
        other = device_network(config, part, tensors, Alone(), Meter())
        np.testing.assert_allclose(np.asarray(other.local(other.gradient(3))), host.gradient(3), rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.asarray(other.local(other.evaluate())), host.evaluate(), rtol=1e-6)


@pytest.mark.parametrize("tensors", [TorchTensors(), MindSporeTensors()], ids=["torch", "mindspore"])
def test_weights_and_squared_gradients_must_be_finite(tensors: Tensors) -> None:
    """Before an evaluation; a squared gradient may be infinite where no weight is. The loss tells of a weight, too."""
    spec = GcnSpec(layers=3, hidden=4, conv="sage", bias=True)
    config = NetworkConfig.of(spec, plan_layers(spec, 6, 3), 2)
    network = HostNetwork(host_problem(Alone(), 1, config, _part("classes"), Meter()), tensors)
    adam = network.adam(0.1, 0)
    refuse_infinite_weights(spec, network, adam, 3)
    adam.second[-1] = np.inf
    with pytest.raises(DivergedError, match=r"^epoch 3: the largest squared gradient is inf, .* --lr 0\.01 is too"):
        refuse_infinite_weights(spec, network, adam, 3)
    network.flat[0] = np.nan
    assert np.isnan(network.gradient(0)[0])
    with pytest.raises(DivergedError, match=r"^epoch 3: the largest weight is nan, "):
        refuse_infinite_weights(spec, network, adam, 3)
