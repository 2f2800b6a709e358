"""Autocast, GradScaler and saved states with networks on parts, as in a script of one process."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch_geometric import nn
from typing_extensions import override

from models.graph.layers_of_pyg import seeded
from models.graph.torch_parts import WHOLE, each_part, on_parts
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart


class _Net(torch.nn.Module):
    def __init__(self, layer: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.last = layer(8, 16), torch.nn.BatchNorm1d(16), layer(16, 3)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.last(functional.elu(self.norm(self.first(x, edge_index))), edge_index)


NETS = {
    name: seeded(lambda layer=layer: _Net(layer), 1)[0]  # type: ignore[misc]
    for name, layer in (("gcn", nn.GCNConv), ("gat", nn.GATConv), ("sage", nn.SAGEConv))
}


def _net(kind: str) -> torch.nn.Module:
    return copy.deepcopy(NETS[kind])


def _loss(model: Callable[..., torch.Tensor], part: GraphPart) -> torch.Tensor:
    mask = part.train_mask
    scores = model(part.x.float(), part.edge_index)
    losses = functional.cross_entropy(scores[mask].float(), part.y[mask], reduction="sum")
    return ug.mean(losses, part.num_train, part)


def _gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("kind", "size"), [("gcn", 2), ("gat", 2), ("sage", 2), ("gat", 1)])
def test_autocast_and_a_grad_scaler(kind: str, size: int) -> None:
    """The gradient is the same bits on every rank, and that of one process in float32 but for bfloat16's rounding."""
    alone = _net(kind)
    scores = alone(WHOLE.x.float(), WHOLE.edge_index)[WHOLE.train_mask]
    torch.autograd.backward(functional.cross_entropy(scores, WHOLE.y[WHOLE.train_mask]))
    expected = _gradients(alone)

    def work(part: GraphPart) -> tuple[list[torch.Tensor], list[float]]:
        model = distribute(_net(kind), part, check=kind == "gcn")
        optimizer, scaler = torch.optim.Adam(model.parameters(), lr=0.02), torch.amp.GradScaler("cpu")
        losses: list[float] = []
        first: list[torch.Tensor] = []
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = _loss(model, part)
            torch.autograd.backward(scaler.scale(loss))
            ug.sum_gradients(model, part)
            scaler.unscale_(optimizer)
            first = first or _gradients(model)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return first, losses

    largest = max(gradient.abs().max() for gradient in expected)
    ranks = on_parts(WHOLE, size, work)
    for found, losses in ranks:
        assert losses == ranks[0][1]
        assert losses[-1] < losses[0] * 0.9
        for gradient, same, right in zip(found, ranks[0][0], expected, strict=True):
            assert torch.equal(gradient, same)
            assert (gradient - right).abs().max() < 0.03 * largest


@each_part()
def test_a_gradient_that_overflows_on_one_rank_skips_the_step_of_all(part: GraphPart) -> None:
    """`sum_gradients` stands before `unscale_`, so all ranks see it and halve their scale."""
    model = distribute(_net("sage"), part)
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)
    torch.autograd.backward(scaler.scale(_loss(model, part)))
    if part.rank == 1:
        next(gradient for p in model.parameters() if (gradient := p.grad) is not None).fill_(float("inf"))
    ug.sum_gradients(model, part)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4
    torch.testing.assert_close(dict(model.named_parameters()), dict(NETS["sage"].named_parameters()), rtol=0, atol=0)


def _training(model: torch.nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def _steps(training: tuple[Any, Any], model: torch.nn.Module, part: GraphPart, count: int) -> list[float]:
    optimizer, scheduler = training
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = _loss(model, part)
        loss.backward()  # type: ignore[no-untyped-call]
        ug.sum_gradients(model, part)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def test_a_saved_training_goes_on_to_the_same_bits() -> None:
    """States of all three, read with `weights_only=True`; the model's also loads into one that is not distributed."""

    def work(part: GraphPart) -> Any:
        model = distribute(_net("gat"), part, check=False)
        training = _training(model)
        _steps(training, model, part, 4)
        file = io.BytesIO()
        torch.save([one.state_dict() for one in (model, *training)], file)
        expected = _steps(training, model, part, 4)

        file.seek(0)
        states = torch.load(file, weights_only=True)
        again = distribute(_net("gat"), part, check=False)
        resumed = _training(again)
        modules: tuple[Any, ...] = (again, *resumed)
        for one, state in zip(modules, states, strict=True):
            one.load_state_dict(state)
        assert _steps(resumed, again, part, 4) == expected
        assert resumed[1].get_last_lr() == training[1].get_last_lr()
        _net("gat").load_state_dict(states[0])
        return states[0]

    first, second = on_parts(WHOLE, 2, work)
    torch.testing.assert_close(second, first, rtol=0, atol=0)
