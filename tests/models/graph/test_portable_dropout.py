"""Dropout of a model under `distribute`: any number of ranks drops the same, and recomputation drops the same again."""

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn
from typing_extensions import override

from models.graph.layers_of_pyg import WIDTH, seeded
from models.graph.torch_parts import WHOLE, Whole, each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.part import GraphPart

CLASSES, STEPS = 3, 3
STATE = {"seed": 5, "forward": 0}


class Net(torch.nn.Module):
    """Calls *function* with itself, x and the edges; it has a layer that passes messages, and a linear map."""

    part: Any = None

    def __init__(self, function: Callable[..., Any], layer: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.conv = layer or nn.SAGEConv(WIDTH, CLASSES)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.weight = torch.nn.Parameter(torch.rand(WIDTH, WIDTH))

    @override
    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.function(self, x, edge_index)


def _dropped(drop: Callable[..., torch.Tensor], **options: Any) -> Net:
    return Net(lambda net, x, edges: net.conv(drop(x, **options), edges))


def _along_edges(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    """Calculate messages by hand: rows with halo and rows of edges are dropped outside of a layer."""
    rows = functional.dropout(ug.halo(net.linear(x), net.part), 0.3)
    messages = functional.dropout(rows[edges[0]], 0.5)
    return x.new_zeros(x.shape).index_add(0, edges[1], messages)[:, :CLASSES]


def _stacked(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    """Rows of nodes on another axis than the first."""
    return net.conv(functional.dropout(torch.stack([x, 2 * x]), 0.5).sum(0), edges)


def _both_ways(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return net.conv(x, edges) + net.conv(x, edges.flip(0))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "GCN": lambda: nn.GCN(WIDTH, 16, 2, CLASSES, dropout=0.5, norm="batch"),
    "GAT, loops added": lambda: nn.GAT(WIDTH, 16, 2, CLASSES, heads=2, dropout=0.5),
    "TransformerConv": lambda: Net(
        lambda net, x, edges: net.conv(x, edges), nn.TransformerConv(WIDTH, CLASSES, heads=2, concat=False, dropout=0.5)
    ),
    "APPNP, weights of edges": lambda: Net(
        lambda net, x, edges: net.conv(net.linear(x)[:, :CLASSES], edges), nn.APPNP(3, 0.1, dropout=0.5)
    ),
    "messages by hand": lambda: Net(_along_edges),
    "in place": lambda: Net(
        lambda net, x, edges: net.conv(functional.dropout(net.linear(x), 0.5, inplace=True), edges)
    ),
    "a stack": lambda: Net(_stacked),
    "all": lambda: _dropped(functional.dropout, p=1.0),
    "against the edges": lambda: Net(_both_ways, nn.GATConv(WIDTH, 3, heads=2, concat=False, dropout=0.5)),
    "messages against the edges": lambda: Net(_both_ways, nn.GATConv(WIDTH, 3, dropout=0.5, aggr="max")),
    "weights against the edges": lambda: Net(
        lambda net, x, edges: net.conv(net.linear(x)[:, :3], edges.flip(0)), nn.APPNP(3, 0.1, dropout=0.5)
    ),
}


def train(
    model: torch.nn.Module, size: int, *, steps: int = STEPS, state: Any = None, whole: Whole = WHOLE,
    owner: Any = None, call: Callable[..., torch.Tensor] | None = None, check: bool = False,
) -> list[float]:  # fmt: skip
    """Return the losses of a training on *size* ranks; *check* is as `distribute` has it."""

    def work(part: GraphPart) -> list[float]:
        own: Any = copy.deepcopy(model).double()
        own.part = part
        ug.distribute(own, part, check=check)
        ug.dropout_state(own, state or STATE)
        return losses_of(own, part, steps, call)

    first, *others = on_parts(whole, size, work, owner)
    assert all(one == first for one in others)
    return first


def losses_of(
    model: Any, part: GraphPart, steps: int, call: Callable[..., torch.Tensor] | None = None
) -> list[float]:  # fmt: skip
    """Return the losses of a distributed model in training."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    x = part.x.clone().requires_grad_()  # a reentrant checkpoint needs a gradient of its input
    for _ in range(steps):
        optimizer.zero_grad()
        out = call(model, x, part.edge_index) if call else model(x, part.edge_index)
        rows, labels = out[part.train_mask], part.y[part.train_mask]
        loss = ug.mean(functional.cross_entropy(rows, labels, reduction="sum"), part.num_train, part)
        torch.autograd.backward(loss)
        ug.sum_gradients(model, part)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _model(name: str = "GCN") -> torch.nn.Module:
    return seeded(MODELS[name], 1)[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_curve_does_not_depend_on_the_number_of_ranks(name: str) -> None:
    """Rows of nodes, with halo, of edges with repeated ends, of a weight: what is dropped follows what a row is of.

    The check by numbers lets each through: on one rank its refusal would be a warning.
    """
    alone = train(_model(name), 1)
    np.testing.assert_allclose(train(_model(name), 3), alone, rtol=0, atol=1e-10)
    assert train(_model(name), 1, state={**STATE, "seed": 6}, steps=1, check=True) != alone[:1] or name == "all"


def test_a_module_that_is_called_in_place_of_the_model_drops_alike() -> None:
    """A script may call the parts of a model one by one."""
    model = torch.nn.ModuleDict({"encoder": _model()})
    losses = [train(model, size, call=lambda model, *given: model["encoder"](*given)) for size in (1, 3)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-10)


class _Entered(Net):
    def encode(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        return self._step(x, edges)

    def _step(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        return self.conv(functional.dropout(x, 0.5, self.training), edges)


def test_a_method_that_is_private_or_compiled_drops_alike() -> None:
    """A script may enter a model by any method of its own."""

    def work(part: GraphPart) -> torch.Tensor:
        model: Any = ug.distribute(copy.deepcopy(plain), part, check=False)
        found: list[torch.Tensor] = []
        for method in (model.encode, model._step, torch.compile(model.encode, backend="eager")):
            ug.dropout_state(model, STATE)
            found.append(method(part.x, part.edge_index).detach())
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        return found[0]

    torch._dynamo.reset()
    plain = seeded(lambda: _Entered(_along_edges), 1)[0].double()
    on_parts(WHOLE, 1, work)


@pytest.mark.parametrize("size", [1, 2])
def test_a_layers_own_edges_are_dropped_without_gradients(size: int) -> None:
    """Also where torch does not count how often a tensor is written to; and the forwards after it are as ever."""

    def work(part: GraphPart) -> None:
        model: Any = ug.distribute(copy.deepcopy(plain), part, check=False)
        found = []
        for context in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad):
            ug.dropout_state(model, STATE)
            with context():
                found.append(model(part.x, part.edge_index).clone())
        assert all(torch.equal(one, found[0]) for one in found)

    plain = seeded(lambda: Net(lambda net, x, edges: net.conv(x, edges[:, ::2]), nn.GATConv(
        WIDTH, CLASSES, add_self_loops=False, aggr="max", dropout=0.5
    )), 1)[0].double()  # fmt: skip
    on_parts(WHOLE, size, work)


def test_as_many_edges_as_nodes(caplog: pytest.LogCaptureFixture) -> None:
    """Inside of a layer rows are of edges; outside they are taken as rows of nodes, and that is said."""
    whole = make_whole(num_nodes=40, num_edges=40)
    owner = np.zeros(40, np.int64)
    edges_into = np.bincount(whole.edge_index[1], minlength=40)
    owner[np.flatnonzero(edges_into == 1)] = 1  # each of these nodes has one edge
    for name, is_told in (("GCN", True), ("TransformerConv", False)):
        caplog.clear()
        alone = train(_model(name), 1, whole=whole)
        np.testing.assert_allclose(train(_model(name), 2, whole=whole, owner=owner), alone, rtol=0, atol=1e-10)
        assert ("has as many edges as nodes (" in caplog.text) == is_told


def _in_segments(net: Any, x: tuple[Any, torch.Tensor], edges: torch.Tensor) -> Any:
    again, given = x
    rows = functional.dropout(again(lambda rows: functional.dropout(net.linear(rows), 0.5), given), 0.5)
    return net.conv(rows, edges) + again(net.conv, rows, edges)


CHECKPOINTED: dict[str, Callable[..., Callable[..., torch.Tensor]]] = {
    "the model twice": lambda again: lambda model, x, edges: again(model, x, edges) + again(model, x, edges),
    "a part of it": lambda again: lambda model, x, edges: model((again, x), edges),
}


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("what", CHECKPOINTED)
def test_a_checkpoint_drops_the_same_again(what: str, use_reentrant: bool) -> None:  # noqa: FBT001
    """Backward calls the function again, when the model has gone on to other masks, or does not run at all."""
    model = inner = _model("GAT, loops added")
    if what == "a part of it":
        model = Net(_in_segments, inner)
    call = CHECKPOINTED[what]
    expected = train(model, 2, call=call(lambda function, *args: function(*args)))
    found = train(model, 2, call=call(partial(checkpoint, use_reentrant=use_reentrant)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_state_that_is_saved_goes_on() -> None:
    """Two steps on three ranks, then two on one: the curve of four. Evaluations between them change nothing."""
    plain = _model().double()  # threads share torch's generator

    def begin(part: GraphPart) -> tuple[Any, Any]:
        model = ug.distribute(copy.deepcopy(plain), part)
        ug.dropout_state(model, STATE)
        losses_of(model, part, 2)
        with torch.no_grad():
            evaluated = [model.eval()(part.x, part.edge_index) for _ in range(2)]
        assert torch.equal(*evaluated)
        return copy.deepcopy(model.state_dict()), ug.dropout_state(model)

    def go_on(part: GraphPart) -> list[float]:
        model = ug.distribute(copy.deepcopy(plain), part)
        model.load_state_dict(weights)
        assert ug.dropout_state(model, dropped) == {"seed": 5, "forward": 2}
        return losses_of(model, part, 2)

    weights, dropped = on_parts(WHOLE, 3, begin)[0]
    (found,) = on_parts(WHOLE, 1, go_on)
    np.testing.assert_allclose(found, train(plain, 1, steps=4)[2:], rtol=0, atol=1e-10)


def test_the_state_of_a_model_that_is_not_distributed_is_refused() -> None:
    """So is a state that is none. The seed of a new one is rank 0's."""
    with pytest.raises(SpecError, match="the model is not distributed"):
        ug.dropout_state(_model())

    def work(part: GraphPart) -> dict[str, int]:
        model = ug.distribute(_model(), part)
        with pytest.raises(SpecError, match="expected what"):
            ug.dropout_state(model, {"seed": 1})
        return ug.dropout_state(model)

    first, *others = on_parts(WHOLE, 3, work)
    assert others == [first, first]


@each_part(1)
def test_the_generator_of_the_script_is_left_alone(part: GraphPart) -> None:
    """A forward draws nothing from it; `distribute` draws one number, so that two models drop other elements."""
    models = [ug.distribute(_model(name).double(), part) for name in ("GCN", "a stack")]
    seeds = {
        ug.dropout_state(ug.distribute(one.double(), part))["seed"] for one in (MODELS["GCN"](), _model("a stack"))
    }
    assert len(seeds) == 2
    for model in models:
        before = torch.get_rng_state()
        model(part.x, part.edge_index)
        assert torch.equal(torch.get_rng_state(), before)


@each_part(1)
def test_each_forward_and_each_dropout_drops_others(part: GraphPart) -> None:
    """And the share that is dropped is the one asked for."""
    net = Net(lambda _, x, __: torch.stack([functional.dropout(x.new_ones(len(x), 500), 0.3) for _ in range(2)]))
    model = ug.distribute(net, part, check=False)
    masks = [*model(part.x, part.edge_index), *model(part.x, part.edge_index)]
    for at, mask in enumerate(masks):
        assert set(mask.unique().tolist()) == {0.0, 1 / 0.7}
        assert abs((mask > 0).double().mean() - 0.7) < 0.02
        assert all(abs(np.corrcoef(mask.ravel(), other.ravel())[0, 1]) < 0.03 for other in masks[:at])


TOLD: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "some rows": (lambda net, x, edges: functional.dropout(net.conv(x, edges)[1:]), "are not those of all owned nodes"),
    "attention": (
        lambda _, x, __: torch.nn.MultiheadAttention(WIDTH, 2, 0.5).double()(x[None], x[None], x[None])[0],
        "MultiheadAttention",
    ),
    "alpha": (lambda _, x, __: functional.alpha_dropout(x, 0.5, training=True), "alpha dropout"),
    "channels": (lambda _, x, __: functional.dropout1d(x[:, :, None], 0.5)[:, :, 0], "of whole channels"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_each_rank_draws_for_itself_is_told_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """By rank 0; on one rank there is nothing to tell."""
    function, expected = TOLD[name]

    def work(part: GraphPart) -> None:
        model = ug.distribute(Net(function).double(), part, check=False)
        for _ in range(2):
            model(part.x, part.edge_index)

    with caplog.at_level(logging.WARNING, "unilaunch_graph"):
        on_parts(WHOLE, 1, work)
        assert not caplog.records
        on_parts(WHOLE, 2, work)
    (record,) = caplog.records
    assert expected in record.getMessage()
