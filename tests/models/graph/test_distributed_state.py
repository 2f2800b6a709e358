"""A distributed model in a script: its weights, its part, shared modules, autocast, saved states, and a compiler."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_geometric import nn

from models.graph.layers_of_pyg import Net, seeded
from models.graph.torch_parts import WHOLE, Whole, each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.loading import remedy_of
from unilaunch_graph.torch.part import GraphPart

PARTS = 2
#: torch's compiler looks at each tensor's, and makes an autograd function to look at it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
]


def test_new_weights_are_the_same_on_every_rank() -> None:
    """Of the whole model, or of its layers one by one, in a loop over runs. Buffers are rank 0's."""

    def work(part: GraphPart) -> list[Any]:
        norm: Any = torch.nn.BatchNorm1d(8)
        norm.running_mean.fill_(part.rank)
        assert not distribute(norm, part).get_buffer("running_mean").any()
        model: Any = distribute(nn.GCN(8, 8, num_layers=2, out_channels=3, norm="batch"), part)
        weights = [copy.deepcopy(dict(model.named_parameters()))]
        for module in (model, *model.convs):
            module.reset_parameters()
            weights.append(copy.deepcopy(dict(model.named_parameters())))
        return weights

    first, second = on_parts(WHOLE, PARTS, work)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first[0]["convs.0.lin.weight"], first[1]["convs.0.lin.weight"])


def _ring() -> Whole:
    """Return a graph whose halves have as many nodes, halo nodes and edges each: into a node, from three others."""
    target = np.tile(np.arange(40), 3)
    source = (target + np.repeat([-1, 1, 2], 40)) % 40
    edges = edges_as_given(source, target, 40, np.arange(120, dtype=np.float32), None)
    return replace(WHOLE, graph=replace(WHOLE.graph, **edges._asdict()))


def _with(rows: torch.Tensor) -> Net:
    model = Net(_forward)
    model.register_buffer("pe", rows)
    return model


@each_part(PARTS, whole=_ring(), owner=np.arange(40) // 20)
def test_rows_of_a_part_in_a_model_are_refused(part: GraphPart) -> None:
    """Rank 0's would replace them. Parts of a ring are of equal size: nothing but the numbers tells them apart."""
    num_edges = part.edge_index.shape[1]
    for rows in (part.x[:, :2].clone(), part.edge_index, part.edge_weight, ug.halo(part.x, part)):
        assert rows is not None
        with pytest.raises(SpecError, match=r"pe with one row for each owned node or edge.*as arguments of the model"):
            distribute(_with(rows), part)
        distribute(_with(torch.ones_like(rows)), part)
    with pytest.raises(SpecError, match=f"a row for each of this rank's 20 nodes or {num_edges} edges"):
        distribute(torch.nn.Embedding(part.num_owned, 8), part)
    weighted = Net(_forward)
    weighted.register_parameter("edge_weight", torch.nn.Parameter(torch.ones(num_edges)))
    with pytest.raises(SpecError, match=r"edge_weight has a row.*Embedding\(num_edges, width\).*part.edge_ids"):
        distribute(weighted, part)


def test_two_models_share_a_layer() -> None:
    """A teacher and a student on one part; a layer, and the edges, of another part are refused."""
    (encoder,) = seeded(lambda: nn.SAGEConv(8, 4), 1)
    expected = encoder(WHOLE.x.float(), WHOLE.edge_index).relu()
    encoders = [copy.deepcopy(encoder) for _ in range(PARTS)]
    others = on_parts(make_whole(seed=1), PARTS, lambda part: part)

    def work(part: GraphPart) -> Any:
        shared, other = encoders[part.rank], others[part.rank]
        models = [distribute(nn.Sequential("x, e", [(shared, "x, e -> x"), torch.nn.ReLU()]), part) for _ in range(2)]
        with pytest.raises(SpecError, match="SAGEConv is distributed on another part"):
            distribute(torch.nn.Sequential(shared), other)
        with pytest.raises(SpecError, match="edge_index of another part"):
            models[0](other.x.float(), other.edge_index)
        models[0](part.x.float(), part.edge_index[:, ::2])
        return [ug.gather(model(part.x.float(), part.edge_index), part) for model in models]

    for rows in on_parts(WHOLE, PARTS, work)[0]:
        torch.testing.assert_close(rows, expected)


@pytest.mark.parametrize("share", [None, 0.0, 0.5], ids=["missing", "empty", "half"])
def test_a_file_that_rank_0_has_not_written_yet_is_told_of_the_barrier(tmp_path: Path, share: float | None) -> None:
    """Below torch's error, on every rank but rank 0, which writes; an error of the content has no such line."""
    file, other = tmp_path / "file.pt", tmp_path / "object.pt"
    torch.save({"weight": object}, other)
    if share is not None:
        torch.save({"weight": torch.zeros(100)}, file)
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises((OSError, EOFError, RuntimeError)) as caught:
        torch.load(file)
    assert "ug.torch.barrier(part)" in remedy_of(caught.value, 1)
    assert not remedy_of(caught.value, 0)
    with pytest.raises(pickle.UnpicklingError) as caught_other:
        torch.load(other)
    assert not remedy_of(caught_other.value, 1)


@each_part(1)
def test_rows_that_are_assigned_to_a_part_are_told_how_to_be_given(part: GraphPart) -> None:
    with pytest.raises(FrozenInstanceError) as caught:
        part.x = part.x * 2  # type: ignore[misc]
    assert "part.x.copy_(...)" in remedy_of(caught.value, 0)


def _forward(net: Any, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
    return net.last(functional.elu(net.norm(net.first(x, edge_index))), edge_index)


def _new(kind: Any) -> Net:
    return Net(_forward, first=kind(8, 16), norm=torch.nn.BatchNorm1d(16), last=kind(16, 3))


NETS = {kind: seeded(partial(_new, kind), 1)[0] for kind in (nn.GCNConv, nn.GATConv, nn.SAGEConv)}


def _loss(model: Callable[..., torch.Tensor], part: GraphPart) -> torch.Tensor:
    scores = model(part.x.float(), part.edge_index)[part.train_mask]
    return ug.mean(
        functional.cross_entropy(scores.float(), part.y[part.train_mask], reduction="sum"), part.num_train, part
    )


def _begin(kind: Any, part: GraphPart) -> tuple[Any, ...]:
    """Return a model, its optimizer, its scheduler and its scaler."""
    model = distribute(copy.deepcopy(NETS[kind]), part, check=kind is nn.GCNConv)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return model, optimizer, scheduler, torch.amp.GradScaler("cpu", init_scale=8.0)


def _steps(training: tuple[Any, ...], part: GraphPart, count: int) -> tuple[list[torch.Tensor], list[float]]:
    """Return the first gradients, and the losses."""
    model, optimizer, scheduler, scaler = training
    gradients: list[torch.Tensor] = []
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = _loss(model, part)
        torch.autograd.backward(scaler.scale(loss))
        ug.sum_gradients(model, part)
        scaler.unscale_(optimizer)
        gradients = gradients or [one.grad.clone() for one in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())
    return gradients, losses


@pytest.mark.parametrize(("kind", "size"), [(nn.GCNConv, 2), (nn.GATConv, 2), (nn.SAGEConv, 2), (nn.GATConv, 1)])
def test_autocast_and_a_grad_scaler(kind: Any, size: int) -> None:
    """The gradient is the same bits on every rank, and that of one process in float32 but for bfloat16's rounding."""
    alone = copy.deepcopy(NETS[kind])
    scores = alone(WHOLE.x.float(), WHOLE.edge_index)[WHOLE.train_mask]
    torch.autograd.backward(functional.cross_entropy(scores, WHOLE.y[WHOLE.train_mask]))
    expected: list[Any] = [one.grad for one in alone.parameters()]
    largest = max(gradient.abs().max() for gradient in expected).item()
    ranks = on_parts(WHOLE, size, lambda part: _steps(_begin(kind, part), part, 8))
    assert ranks[0][1][-1] < ranks[0][1][0] * 0.9
    for found in ranks:
        torch.testing.assert_close(found, ranks[0], rtol=0, atol=0)
        torch.testing.assert_close(found[0], expected, rtol=0, atol=0.03 * largest)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # of a step that is skipped
@each_part()
def test_a_gradient_that_overflows_on_one_rank_skips_the_step_of_all(part: GraphPart) -> None:
    """`sum_gradients` stands before `unscale_`, so all ranks see it and halve their scale."""
    model, *_, scaler = training = _begin(nn.SAGEConv, part)
    if part.rank == 1:
        next(model.parameters()).register_hook(lambda gradient: gradient.fill_(torch.inf))
    _steps(training, part, 1)
    assert scaler.get_scale() == 4
    expected = dict(NETS[nn.SAGEConv].named_parameters())
    torch.testing.assert_close(dict(model.named_parameters()), expected, rtol=0, atol=0)


def test_a_saved_training_goes_on_to_the_same_bits() -> None:
    """States of all four, read with `weights_only=True`; the model's also loads into one that is not distributed."""

    def work(part: GraphPart) -> Any:
        training, resumed, file = _begin(nn.GATConv, part), _begin(nn.GATConv, part), io.BytesIO()
        _steps(training, part, 4)
        torch.save([one.state_dict() for one in training], file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        for one, state in zip(resumed, states, strict=True):
            one.load_state_dict(state)
        assert _steps(resumed, part, 4)[1] == _steps(training, part, 4)[1]
        copy.deepcopy(NETS[nn.GATConv]).load_state_dict(states[0])
        return states[0]

    first, second = on_parts(WHOLE, 2, work)
    torch.testing.assert_close(second, first, rtol=0, atol=0)


HOW = ["as a function", "in place", "before distribute"]


def _compiled(model: Any, part: GraphPart, how: str = "in place") -> Any:
    torch._dynamo.reset()
    if how == "before distribute":
        model = torch.compile(model, backend="eager")
        distribute(model, part)
        return model
    if how == "in place":
        distribute(model, part).compile(backend="eager")
        return model
    return torch.compile(distribute(model, part), backend="eager")


@pytest.mark.parametrize(("kind", "how"), [*((nn.GCN, how) for how in HOW), (nn.GAT, HOW[0])])
@each_part(1)
def test_a_compiled_model_is_trained_and_evaluated(part: GraphPart, kind: Any, how: str) -> None:
    """Two layers of one class are two copies of its forward; evaluation once took the first one's names."""
    alone, model = seeded(lambda: kind(8, 4, 2, 3), 2)
    model, rows = _compiled(model, part, how), WHOLE.x.float()
    for training in (True, False, True):
        with torch.set_grad_enabled(training):
            expected = alone.train(training)(rows, WHOLE.edge_index)[part.owned]
            torch.testing.assert_close(model.train(training)(rows[part.owned], part.edge_index), expected)


@pytest.mark.parametrize("how", HOW[:2])
@each_part(1)
def test_a_compiled_model_is_checked(part: GraphPart, how: str) -> None:
    """On one rank what differs is a warning."""
    centred = Net(lambda net, *given: (rows := net.gcn(*given)) - rows.mean(0), gcn=nn.GCN(8, 4, 2, 3))
    with pytest.warns(UserWarning, match="Net is not exact on parts"):
        _compiled(centred, part, how)(part.x.float(), part.edge_index)


@pytest.mark.parametrize("kind", [nn.GCN, nn.GAT, nn.GATv2Conv, nn.TransformerConv])
@each_part(1)
def test_a_compiled_model_drops_the_same(part: GraphPart, kind: Any) -> None:
    """Rows of nodes, and edges in attention, as the model without the compiler does."""
    sizes = (8, 4, 2, 3) if kind in {nn.GCN, nn.GAT} else (8, 4, 2)
    (plain, model), found = seeded(lambda: kind(*sizes, dropout=0.5), 2), []
    for one in (distribute(plain, part), _compiled(model, part)):
        ug.dropout_state(one, {"seed": 5, "forward": 1})
        found.append(one(part.x.float(), part.edge_index))
    assert torch.equal(*found)
    assert not torch.equal(found[0], plain(part.x.float(), part.edge_index)), "nothing was dropped"
