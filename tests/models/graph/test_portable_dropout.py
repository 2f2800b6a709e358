"""Dropout: masks of seed, step, layer, node and column, which any number of ranks, and a recomputation, make alike."""

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn

from models.graph.layers_of_pyg import WIDTH, Net, seeded
from models.graph.torch_parts import WHOLE, Whole, each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.dropout import edge_keys, entry_mask, fill_mask, mask_of_words, stream_keys
from unilaunch_graph.operators.torch_masks import edge_keys as torch_edge_keys
from unilaunch_graph.torch.part import GraphPart

CLASSES, STATE, F32 = 3, {"seed": 5, "forward": 0}, np.dtype(np.float32)


def _mask(nodes: Any, width: int, probability: float = 0.5, *stream: int) -> NDArray[np.float32]:
    out = np.empty((len(nodes), width), np.float32)
    fill_mask(out, np.asarray(nodes), stream_keys(*(stream or (0, 0, 0))), probability)
    return out


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_rows_do_not_depend_on_which_are_asked_for(nodes: list[int], width: int, seed: int) -> None:
    """Any part of the graph makes the same mask, row by row and entry by entry, also for ids above 2**32."""
    whole = _mask(nodes, width, 0.5, seed, 2, 3)
    for row, node in zip(whole, nodes, strict=True):
        np.testing.assert_array_equal(row, _mask([node], width, 0.5, seed, 2, 3)[0])
    rows, columns = (index.ravel() for index in np.indices((len(nodes), width)))
    entries = entry_mask(np.array(nodes)[rows], columns, stream_keys(seed, 2, 3), 0.5, F32)
    np.testing.assert_array_equal(entries, whole.ravel())


def test_rows_of_edges_follow_both_ends_and_how_often_these_come() -> None:
    """Any order and any part of the edges gives each edge its mask; the edge back, and a repeated edge, have others."""
    sources, targets = (np.tile(ends.ravel(), 2) for ends in np.indices((30, 30)))
    repeats, keys = np.repeat([0, 1], 900), stream_keys(1, 2, 3)
    chosen = np.random.default_rng(0).permutation(1800)[:700]
    every = edge_keys(sources, targets, repeats, keys)
    np.testing.assert_array_equal(every[chosen], edge_keys(sources[chosen], targets[chosen], repeats[chosen], keys))
    assert len(np.unique(every)) == len(every)
    mask = mask_of_words(every, (1800, 100), keys, 0.3, F32) > 0
    assert abs(mask.mean() - 0.7) < 5e-3
    first, second = mask[:900], mask[900:]
    back = first.reshape(30, 30, 100).swapaxes(0, 1).reshape(first.shape)
    assert all(abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.05 for other in (second, back))
    ids = [torch.from_numpy(array) for array in (sources, targets, repeats)]
    np.testing.assert_array_equal(torch_edge_keys(ids[0], ids[1], ids[2], keys).numpy(), every)


def _net(function: Callable[..., Any], layer: torch.nn.Module | None = None, kind: type[Net] = Net) -> Net:
    return kind(function, conv=layer or nn.SAGEConv(WIDTH, CLASSES), linear=torch.nn.Linear(WIDTH, WIDTH))


def _along_edges(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    """Calculate messages by hand: rows with halo and rows of edges are dropped outside of a layer."""
    rows = functional.dropout(ug.halo(net.linear(x), net.part), 0.3)
    messages = functional.dropout(rows[edges[0]], 0.5)
    return x.new_zeros(x.shape).index_add(0, edges[1], messages)[:, :CLASSES]


def _both_ways(net: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return net.conv(x, edges) + net.conv(x, edges.flip(0))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "GCN": lambda: nn.GCN(WIDTH, 16, 2, CLASSES, dropout=0.5, norm="batch"),
    "GAT, loops added": lambda: nn.GAT(WIDTH, 16, 2, CLASSES, heads=2, dropout=0.5),
    "TransformerConv": lambda: _net(
        lambda net, x, edges: net.conv(x, edges), nn.TransformerConv(WIDTH, 3, heads=2, concat=False, dropout=0.5)),
    "APPNP, weights of edges": lambda: _net(
        lambda net, x, edges: net.conv(net.linear(x)[:, :CLASSES], edges), nn.APPNP(3, 0.1, dropout=0.5)),
    "messages by hand": lambda: _net(_along_edges),
    "in place": lambda: _net(lambda net, x, edges: net.conv(functional.dropout(net.linear(x), inplace=True), edges)),
    "a stack, nodes on its second axis": lambda: _net(
        lambda net, x, edges: net.conv(functional.dropout(torch.stack([x, 2 * x]), 0.5).sum(0), edges)),
    "all": lambda: _net(lambda net, x, edges: net.conv(functional.dropout(x, p=1.0), edges)),
    "against the edges": lambda: _net(_both_ways, nn.GATConv(WIDTH, 3, heads=2, concat=False, dropout=0.5)),
    "messages against the edges": lambda: _net(_both_ways, nn.GATConv(WIDTH, 3, dropout=0.5, aggr="max")),
    "weights against the edges": lambda: _net(
        lambda net, x, edges: net.conv(net.linear(x)[:, :3], edges.flip(0)), nn.APPNP(3, 0.1, dropout=0.5)),
}  # fmt: skip


def _model(name: str = "GCN") -> torch.nn.Module:
    return seeded(MODELS[name], 1)[0].double()


def train(
    model: torch.nn.Module, size: int, *, steps: int = 3, state: Any = None, whole: Whole = WHOLE,
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


def losses_of(model: Any, part: GraphPart, steps: int, call: Any = None) -> list[float]:
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


@pytest.mark.parametrize("name", MODELS)
def test_the_curve_does_not_depend_on_the_number_of_ranks(name: str) -> None:
    """Rows of nodes, with halo, of edges with repeated ends, of a weight: what is dropped follows what a row is of.

    The check by numbers lets each through: on one rank its refusal would be a warning.
    """
    alone = train(_model(name), 1)
    np.testing.assert_allclose(train(_model(name), 3), alone, rtol=0, atol=1e-10)
    assert train(_model(name), 1, state={**STATE, "seed": 6}, steps=1, check=True) != alone[:1] or name == "all"


class _Entered(Net):
    def encode(self, *given: torch.Tensor) -> Any:
        return self._step(*given)

    def _step(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        return self.conv(functional.dropout(x, 0.5, self.training), edges)  # type: ignore[operator]


#: How a script enters a model in other ways than by its forward.
ENTRIES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[Any], Any]]] = {
    "a module": (lambda: torch.nn.ModuleDict({"one": _model()}), lambda model: model["one"]),
    "a method": (lambda: _net(_along_edges, kind=_Entered), lambda model: model.encode),
    "a private method": (lambda: _net(_along_edges, kind=_Entered), lambda model: model._step),
    "a module's": (
        lambda: torch.nn.ModuleDict({"one": _net(_along_edges, kind=_Entered)}),
        lambda model: model["one"]._step,
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_called_in_place_of_the_model_drops_alike(name: str) -> None:
    make, entry = ENTRIES[name]
    model = make()
    losses = [train(model, size, call=lambda model, *given: entry(model)(*given)) for size in (1, 3)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-10)


def test_as_many_edges_as_nodes(caplog: pytest.LogCaptureFixture) -> None:
    """Inside of a layer rows are of edges; outside they are taken as rows of nodes, and that is said."""
    whole = make_whole(num_nodes=40, num_edges=40)
    owner = np.bincount(whole.edge_index[1], minlength=40) == 1  # each of these nodes has one edge
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
    inner, call = _model("GAT, loops added"), CHECKPOINTED[what]
    model = _net(_in_segments, inner) if what == "a part of it" else inner
    expected = train(model, 2, call=call(lambda function, *args: function(*args)))
    found = train(model, 2, call=call(partial(checkpoint, use_reentrant=use_reentrant)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_state_that_is_saved_goes_on() -> None:
    """Two steps on three ranks, then two on one: the curve of four. Evaluations between them change nothing."""
    plain = _model()  # threads share torch's generator

    def begin(part: GraphPart) -> tuple[Any, Any]:
        model = ug.distribute(copy.deepcopy(plain), part)
        ug.dropout_state(model, STATE)
        losses_of(model, part, 2)
        with torch.no_grad():
            assert torch.equal(*(model.eval()(part.x, part.edge_index) for _ in range(2)))
        return copy.deepcopy(model.state_dict()), ug.dropout_state(model)

    def go_on(part: GraphPart) -> list[float]:
        model = ug.distribute(copy.deepcopy(plain), part)
        model.load_state_dict(weights)
        assert ug.dropout_state(model, dropped) == {"seed": 5, "forward": 2}
        return losses_of(model, part, 2)

    weights, dropped = on_parts(WHOLE, 3, begin)[0]
    (found,) = on_parts(WHOLE, 1, go_on)
    np.testing.assert_allclose(found, train(plain, 1, steps=4)[2:], rtol=0, atol=1e-10)


def test_the_seed_is_rank_0s_and_of_the_scripts_generator() -> None:
    """`distribute` draws it. What is no state, or of no distributed model, is refused."""
    with pytest.raises(SpecError, match="the model is not distributed"):
        ug.dropout_state(_model())

    def work(part: GraphPart) -> list[int]:
        models = [ug.distribute(_model(), part), ug.distribute(MODELS["GCN"]().double(), part)]
        with pytest.raises(SpecError, match="expected what"):
            ug.dropout_state(models[0], {"seed": 1})
        return [ug.dropout_state(model)["seed"] for model in models]

    first, *others = on_parts(WHOLE, 3, work)
    assert others == [first, first]
    assert first[0] != first[1]


@each_part(1)
def test_each_forward_and_each_dropout_drops_others(part: GraphPart) -> None:
    """The share that is dropped is the one asked for, in rows and columns. The script's generator is left alone."""
    net = _net(lambda _, x, __: torch.stack([functional.dropout(x.new_ones(len(x), 500), 0.3) for _ in range(2)]))
    model, before = ug.distribute(net, part, check=False), torch.get_rng_state()
    masks = [*model(part.x, part.edge_index), *model(part.x, part.edge_index)]
    assert torch.equal(torch.get_rng_state(), before)
    for at, mask in enumerate(masks):
        assert set(mask.unique().tolist()) == {0.0, 1 / 0.7}
        kept = (mask > 0).double()
        assert abs(kept.mean() - 0.7) < 0.02
        for axis, count in ((0, 40), (1, 500)):
            assert kept.mean(axis).std().item() == pytest.approx((0.3 * 0.7 / count) ** 0.5, rel=0.3)
        assert all(abs(np.corrcoef(mask.ravel(), other.ravel())[0, 1]) < 0.03 for other in masks[:at])


@pytest.mark.parametrize(("function", "expected"), [
    (lambda net, x, edges: functional.dropout(net.conv(x, edges)[1:]), "are not those of all owned nodes"),
    (lambda _, x, __: functional.alpha_dropout(x, 0.5, training=True), "alpha dropout"),
])  # fmt: skip
def test_what_each_rank_draws_for_itself_is_told_once(
    function: Callable[..., Any], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By rank 0; on one rank there is nothing to tell."""

    def work(part: GraphPart) -> None:
        model = ug.distribute(_net(function).double(), part, check=False)
        for _ in range(2):
            model(part.x, part.edge_index)

    with caplog.at_level(logging.WARNING, "unilaunch_graph"):
        on_parts(WHOLE, 1, work)
        assert not caplog.records
        on_parts(WHOLE, 2, work)
    (record,) = caplog.records
    assert expected in record.getMessage()
