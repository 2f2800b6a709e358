"""What a network on tensors is given on a part: the halo, sums over ranks, normalisations, dropout, refusals."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric import EdgeIndex, nn
from torch_geometric.utils import add_self_loops
from typing_extensions import override

from models.graph.torch_parts import Whole, make_whole, on_parts
from unilaunch.errors import InputError, SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart

WHOLE = make_whole()
PARTS = 3
pytestmark = pytest.mark.usefixtures("float64")


def _nodes(part: GraphPart) -> torch.Tensor:
    """Return the global id of each owned and each halo node."""
    return ug.halo(part.owned, part)


def test_a_part_holds_every_edge_into_its_nodes() -> None:
    """With its weight and its features; sorted by target, then by source."""

    def edges(part: GraphPart) -> torch.Tensor:
        assert part.edge_weight is not None
        assert part.edge_attr is not None
        assert part.num_train == int(WHOLE.train_mask.sum())
        torch.testing.assert_close(part.x, WHOLE.x[part.owned])
        assert torch.equal(part.y, WHOLE.y[part.owned])
        assert torch.equal(part.train_mask, WHOLE.train_mask[part.owned])
        ends = _nodes(part)[part.edge_index]
        key = part.edge_index[1] * part.num_nodes + ends[0]
        assert torch.equal(key, key.sort().values)
        return torch.cat([ends.T.double(), part.edge_weight[:, None], part.edge_attr], 1)

    found = torch.cat(on_parts(WHOLE, PARTS, edges)).tolist()
    whole = torch.cat([WHOLE.edge_index.T.double(), WHOLE.edge_weight[:, None], WHOLE.edge_attr], 1).tolist()
    assert sorted(found) == sorted(whole)


def test_a_part_stays_on_the_device_of_its_rank() -> None:
    """The line `data = data.to(device)` of a script for PyG may stay, unless it names another device."""

    def move(part: GraphPart) -> bool:
        with pytest.raises(SpecError, match=r"the part is on cpu.* choose by ug\.load\(\.\.\., device='meta'\)"):
            part.to("meta")
        return part.to(torch.device("cpu")) is part and part.to("cpu") is part

    assert on_parts(WHOLE, 2, move) == [True, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_halo_rows_are_their_owners_rows(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Of any type and any shape of a row, and the first result stays as it was when the next exchange comes."""
    rows = (torch.randn(40, *shape) * 9).to(dtype)

    def work(part: GraphPart) -> None:
        first = ug.halo(rows[part.owned], part)
        second = ug.halo(rows[part.owned] * 0, part)
        assert torch.equal(first, rows[_nodes(part)])
        assert not second.any()

    on_parts(WHOLE, PARTS, work)


def test_features_are_sent_once() -> None:
    """Until somebody writes to them; a tensor that only equals them is sent each time."""

    def work(part: GraphPart) -> None:
        first = ug.halo(part.x, part)
        assert ug.halo(part.x, part) is first
        assert ug.halo(part.x.clone(), part) is not first
        part.x.mul_(2)
        assert torch.equal(ug.halo(part.x, part), 2 * WHOLE.x[_nodes(part)])
        ug.halo(part.x, part).zero_()
        assert torch.equal(ug.halo(part.x, part), 2 * WHOLE.x[_nodes(part)])

    on_parts(WHOLE, PARTS, work)


def test_features_are_fetched_in_inference_mode() -> None:
    """By a script that evaluates first and trains later."""

    def work(part: GraphPart) -> None:
        with torch.inference_mode():
            assert torch.equal(ug.halo(part.x, part), WHOLE.x[_nodes(part)])
        weight = torch.ones(8, requires_grad=True)
        torch.autograd.backward((ug.halo(part.x, part) @ weight).sum())

    on_parts(WHOLE, PARTS, work)


def test_gradients_of_halo_rows_are_added_at_home() -> None:
    """The gradient is the exact transpose: each row gets the sum of its gradients on all ranks."""
    weights = torch.randn(PARTS, 40, 4)

    def work(part: GraphPart) -> torch.Tensor | None:
        rows = WHOLE.x[part.owned, :4].requires_grad_()
        mine = weights[part.rank, _nodes(part)]
        torch.autograd.backward((ug.halo(rows, part) * mine).sum())
        assert rows.grad is not None
        summed = ug.sum_halo(mine, part)
        assert torch.equal(summed, rows.grad)
        return ug.gather(rows.grad, part)

    seen = torch.stack(on_parts(WHOLE, PARTS, _seen))
    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], (weights * seen[:, :, None]).sum(0))


def _seen(part: GraphPart) -> torch.Tensor:
    """Return 1 for each node that the part owns or has in its halo. (num_nodes,)"""
    return torch.zeros(40).index_fill(0, _nodes(part), 1.0)


def test_mean_takes_a_loss_of_many_terms_and_one_that_a_backward_has_freed() -> None:
    """It looks for a mean among the steps that made the loss, each once, and needs none of their numbers."""

    def work(part: GraphPart) -> None:
        rows = part.x.clone().requires_grad_()
        many, doubled = rows.sum(), rows.sum()
        for _ in range(2000):
            many = many + rows.sum()
        for _ in range(40):
            doubled = doubled + doubled
        halved = (rows * rows).sum() * 0.5
        torch.autograd.backward(halved)
        for loss in (many, doubled, halved):
            assert ug.mean(loss, part.num_nodes, part).isfinite()

    on_parts(WHOLE, 1, work)


def test_mean_is_the_whole_graphs_and_its_gradient_this_ranks_share() -> None:
    """Every rank returns the same number."""

    def work(part: GraphPart) -> float:
        value = (part.x.sum() * 1.0).requires_grad_()
        mean = ug.mean(value, part.num_nodes, part)
        torch.autograd.backward(mean)
        assert value.grad is not None
        assert value.grad.item() == 1 / 40
        assert ug.mean(part.x, part.num_nodes, part).item() == pytest.approx(mean.item(), abs=1e-12)  # not summed yet
        return mean.item()

    means = on_parts(WHOLE, PARTS, work)
    assert means == pytest.approx([WHOLE.x.sum().item() / 40] * PARTS, abs=1e-12)
    assert len(set(means)) == 1


def test_the_gradient_of_a_correlation_is_exact() -> None:
    """Rows are compared with means of all ranks' rows: `sum_ranks` for the statistics, `mean` for the loss."""
    x = WHOLE.x.clone().requires_grad_()
    torch.autograd.backward(_correlation(x, lambda rows: rows.sum(0), lambda products: products.mean()))

    def work(part: GraphPart) -> Any:
        rows = part.x.clone().requires_grad_()
        loss = _correlation(
            rows, lambda rows: ug.sum_ranks(rows.sum(0), part), lambda products: ug.mean(products, 40, part)
        )
        torch.autograd.backward(loss)
        assert rows.grad is not None
        return ug.gather(rows.grad, part)

    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], x.grad, rtol=0, atol=1e-12)


def _correlation(x: torch.Tensor, total: Callable[..., Any], mean: Callable[..., Any]) -> torch.Tensor:
    """Return that of the first two columns."""
    x = x[:, :2] - total(x[:, :2]) / 40
    normal = x / (total(x.square()) / 40).sqrt()
    loss: torch.Tensor = mean(normal[:, 0] * normal[:, 1])
    return loss


def test_gradients_are_summed_where_some_ranks_have_none() -> None:
    """A parameter that no rank used keeps None, as in one process."""

    def work(part: GraphPart) -> list[Any]:
        used, some, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
        half = torch.nn.Parameter(torch.ones(3, dtype=torch.float32))
        used.grad, half.grad = torch.full((2,), part.rank + 1.0), torch.ones(3, dtype=torch.float32)
        if part.rank == 1:
            some.grad = torch.tensor([5.0, 7.0])
        ug.sum_gradients([used, some, unused, half], part)
        return [p.grad if p.grad is None else p.grad.tolist() for p in (used, some, unused, half)]

    assert on_parts(WHOLE, PARTS, work) == [[[6.0, 6.0], [5.0, 7.0], None, [3.0] * 3]] * PARTS


@pytest.mark.parametrize("size", [1, PARTS])
def test_a_mean_of_16_bit_losses_does_not_overflow(size: int) -> None:
    """Their sum does; torch's own mean adds them in float32."""

    def work(part: GraphPart) -> tuple[float, float]:
        losses = torch.full((300,), 500.0, dtype=torch.float16, requires_grad=True)
        loss = ug.mean(losses, 300 * size, part)
        torch.autograd.backward(loss)
        assert losses.grad is not None
        assert loss.dtype == losses.grad.dtype == torch.float16
        return loss.item(), losses.grad.double().sum().item()

    for loss, gradient in on_parts(WHOLE, size, work):
        assert loss == 500
        assert gradient == pytest.approx(1 / size, rel=1e-3)


def test_sums_of_bools_count() -> None:
    """As torch's own sum does; the sum of two True would be True."""
    for size in (1, PARTS):
        sums = on_parts(WHOLE, size, lambda part: ug.sum_ranks(torch.tensor([True, part.rank == 0]), part).tolist())
        assert sums == [[size, 1]] * size


def test_a_gradient_that_two_models_share_is_summed_once(caplog: pytest.LogCaptureFixture) -> None:
    """A second sum would count it once for each rank. One line tells of gradients that were added to a sum."""

    def work(part: GraphPart) -> list[list[float]]:
        part.ranks.has_loss = True
        found, shared, own = [], torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        for _ in range(2):
            torch.autograd.backward((shared * own * (part.rank + 1)).sum())  # 1, 2 and 3
            ug.sum_gradients([shared], part)
            ug.sum_gradients([shared, own], part)
            found.append([gradient.item() for one in (shared, own) if (gradient := one.grad) is not None])
            for one in (shared, own):
                assert one.grad is not None
                one.grad.zero_()
        assert not caplog.records
        for _ in range(2):
            torch.autograd.backward((shared * (part.rank + 1)).sum())
            ug.sum_gradients([shared], part)
        return found

    assert on_parts(WHOLE, PARTS, work) == [[[6.0, 6.0]] * 2] * PARTS
    assert [record.message for record in caplog.records if "one sum_gradients, after the last" in record.message]


def test_dropout_does_not_depend_on_the_parts() -> None:
    """The same elements are dropped on one part and on three; rank 0 gathers them in the user's order."""

    def work(part: GraphPart) -> torch.Tensor | None:
        with pytest.raises(TypeError, match=r"rows are torch.int64: expected floats"):
            ug.dropout(part.owned[:, None], part, 0.2, seed=0, step=0)
        return ug.gather(ug.dropout(part.x, part, 0.5, seed=1, step=2), part)

    (alone,), (first, *others) = on_parts(WHOLE, 1, work), on_parts(WHOLE, PARTS, work)
    assert alone is not None
    assert first is not None
    assert torch.equal(alone, first)
    assert others == [None] * (PARTS - 1)
    kept = alone != 0
    assert torch.equal(alone[kept], 2 * WHOLE.x[kept])
    assert 0.3 < kept.double().mean() < 0.7


def test_accuracy_is_of_the_whole_graph() -> None:
    """The same float on every rank, also where a rank has none of the nodes; a mask without nodes is refused."""
    scores = torch.randn(len(WHOLE.x), 3, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(len(WHOLE.x)) % 7 == 0  # all are of one rank

    def work(part: GraphPart) -> float:
        ug.barrier(part)
        with pytest.raises(InputError, match="mean over 0 nodes"):
            ug.accuracy(scores[part.owned], part.y, part.val_mask & ~part.val_mask, part)
        return ug.accuracy(scores[part.owned], part.y, mask[part.owned], part)

    expected = (scores.argmax(1) == WHOLE.y)[mask].double().mean().item()
    assert on_parts(WHOLE, PARTS, work) == [pytest.approx(expected, abs=0)] * PARTS


NORMS: list[Callable[[], torch.nn.Module]] = [
    lambda: torch.nn.BatchNorm1d(8),
    lambda: nn.BatchNorm(8, allow_single_element=True),
    lambda: nn.InstanceNorm(8, affine=True, track_running_stats=True),
    lambda: nn.GraphNorm(8),
    nn.PairNorm,
    nn.MeanSubtractionNorm,
    lambda: nn.LayerNorm(8),
    lambda: nn.LayerNorm(8, mode="node"),
    nn.GraphSizeNorm,
    lambda: nn.DiffGroupNorm(8, groups=2),
    lambda: nn.MessageNorm(learn_scale=True),
]


@pytest.mark.parametrize("make", NORMS)
def test_a_normalisation_is_exact_on_parts(make: Callable[[], torch.nn.Module]) -> None:
    """Rows, gradients, running statistics over three steps, and the rows in evaluation."""
    alone, *models = (_seeded(make) for _ in range(1 + PARTS))
    expected = _normalised(alone, WHOLE, lambda rows: rows)

    def work(part: GraphPart) -> Any:
        model = distribute(models[part.rank], part)
        found = _normalised(model, part, lambda rows: ug.gather(rows, part))
        ug.sum_gradients(model, part)
        return found, [p.grad for p in model.parameters()], model.state_dict()

    for rank, (found, grads, state) in enumerate(on_parts(WHOLE, PARTS, work)):
        if rank == 0:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(grads, [p.grad for p in alone.parameters()], rtol=0, atol=1e-10)
        torch.testing.assert_close(state, alone.state_dict(), rtol=0, atol=1e-10)


def _seeded(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    return make()


def _normalised(model: torch.nn.Module, graph: Any, whole: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Return the rows of three steps, the gradient of the input, and the rows in evaluation."""
    x = graph.x.clone().requires_grad_()
    found = []
    for step in range(3):
        rows = x * (step + 1) + step
        out = model(rows, graph.x) if isinstance(model, nn.MessageNorm) else model(rows)
        torch.autograd.backward((out * torch.arange(1.0, 9.0)).sin().sum())
        found.append(whole(out.detach()))
    model.eval()
    out = model(x, graph.x) if isinstance(model, nn.MessageNorm) else model(x)
    return [*found, whole(x.grad), whole(out.detach())]


def test_our_batch_norm_is_torchs() -> None:
    """`ug.torch.BatchNorm`, for a model that is not distributed, has torch's parameters, keys and results."""
    alone = torch.nn.BatchNorm1d(8)
    expected = alone(WHOLE.x)

    def work(part: GraphPart) -> Any:
        norm = ug.BatchNorm(8, part)
        return ug.gather(norm(part.x), part), norm.state_dict()

    for rank, (rows, state) in enumerate(on_parts(WHOLE, PARTS, work)):
        torch.testing.assert_close(state, alone.state_dict())
        if rank == 0:
            torch.testing.assert_close(rows, expected)


class _Jumping(torch.nn.Module):
    """Several layers, two sets of edges, and the rows of all layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([nn.GATConv(8, 8), nn.GCNConv(8, 8), nn.SAGEConv(8, 8)])
        self.jump, self.last = nn.JumpingKnowledge("lstm", 8, 3), nn.GraphConv(8, 3)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return three scores for each node."""
        heavy = weight > 1
        rows = [x := layer(x, edge_index[:, heavy] if place == 1 else edge_index) for place, layer in self._numbered]
        scores: torch.Tensor = self.last(self.jump(rows), edge_index, weight)
        return scores

    @property
    def _numbered(self) -> list[tuple[int, torch.nn.Module]]:
        return list(enumerate(self.layers))


def test_a_users_own_model_is_exact() -> None:
    """Trained over three steps: the weights are those of one process; a deep copy has weights of its own."""
    alone = _seeded(_Jumping)
    models = [_seeded(_Jumping) if rank == 0 else _Jumping() for rank in range(PARTS)]
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(_loss(alone(WHOLE.x, WHOLE.edge_index, WHOLE.edge_weight), WHOLE))
        optimizer.step()

    def work(part: GraphPart) -> Any:
        model = distribute(models[part.rank], part)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        first = copy.deepcopy(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss = _loss(model(part.x, part.edge_index, part.edge_weight), part)
            torch.autograd.backward(ug.mean(loss, 1, part))
            ug.sum_gradients(model, part)
            optimizer.step()
        first.load_state_dict(model.state_dict())
        with torch.no_grad():
            assert torch.equal(*(m(part.x, part.edge_index, part.edge_weight) for m in (first, model)))
            next(first.parameters()).zero_()
            return model.state_dict(), ug.gather(model(part.x, part.edge_index, part.edge_weight), part)

    for rank, (state, scores) in enumerate(on_parts(WHOLE, PARTS, work)):
        torch.testing.assert_close(state, alone.state_dict(), rtol=0, atol=1e-10)
        if rank == 0:
            expected = alone(WHOLE.x, WHOLE.edge_index, WHOLE.edge_weight).detach()
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [nn.GCN, nn.GraphSAGE, nn.GAT, nn.GIN, nn.EdgeCNN])
def test_a_model_of_pyg_is_exact(kind: type[torch.nn.Module]) -> None:
    """PyG's ready-made networks, with batch normalisation and jumping knowledge."""

    def make() -> torch.nn.Module:
        return kind(8, 8, num_layers=2, out_channels=3, norm="batch", jk="cat", dropout=0.0)

    alone, *models = (_seeded(make) for _ in range(1 + PARTS))
    torch.autograd.backward(_loss(alone(WHOLE.x, WHOLE.edge_index), WHOLE))

    def work(part: GraphPart) -> Any:
        model = distribute(models[part.rank], part)
        torch.autograd.backward(ug.mean(_loss(model(part.x, part.edge_index), part), 1, part))
        ug.sum_gradients(model, part)
        return [parameter.grad for parameter in model.parameters()]

    expected = [parameter.grad for parameter in alone.parameters()]
    for grads in on_parts(WHOLE, PARTS, work):
        torch.testing.assert_close(grads, expected, rtol=0, atol=1e-10)


def _loss(scores: torch.Tensor, graph: Whole | GraphPart) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores[graph.train_mask], graph.y[graph.train_mask], reduction="sum")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.TopKPooling(8), "TopKPooling"),
        (lambda: nn.LINKX(40, 8, 8, 3, 2), "SparseLinear has a row of weights for each node: take SimpleConv"),
        (lambda: nn.SAGEConv(8, 8, aggr="lstm"), r"aggr_module \(LSTMAggregation\)"),
        (lambda: nn.SAGEConv(8, 8, flow="target_to_source"), "expected flow='source_to_target'"),
        (lambda: nn.SAGEConv(-1, 8), "number of input columns"),
    ],
)
def test_what_cannot_be_exact_is_refused(make: Callable[[], torch.nn.Module], words: str) -> None:
    """By the module's name and class, with what to do."""
    part: Any = None
    with pytest.raises(SpecError, match=words):
        distribute(make(), part)


def test_ids_in_place_of_rows_are_those_of_the_owned_nodes() -> None:
    """RGCNConv without x is refused with the advice that is exact; the fast one takes the rows' numbers for ids."""
    alone, *layers = (_seeded(lambda: nn.RGCNConv(40, 4, num_relations=3)) for _ in range(1 + PARTS))

    def types(graph: Any) -> Any:
        return graph.edge_attr.argmax(1)

    def work(part: GraphPart) -> torch.Tensor | None:
        layer, fast = (distribute(one, part) for one in (layers[part.rank], nn.FastRGCNConv(40, 4, 3)))
        with pytest.raises(SpecError, match=r"x is None, .*: expected x=part.owned"):
            layer(None, part.edge_index, types(part))
        with pytest.raises(SpecError, match=r"\(FastRGCNConv\): .* take RGCNConv with x=part.owned"):
            fast(part.owned, part.edge_index, types(part))
        return ug.gather(layer(part.owned, part.edge_index, types(part)).detach(), part)

    expected = alone(None, WHOLE.edge_index, types(WHOLE)).detach()
    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], expected, rtol=0, atol=1e-10)


class _Embedded(torch.nn.Module):
    """What stands in the place of LightGCN, and of a part of LINKX."""

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.embedding, self.conv = torch.nn.Embedding(40, 4), conv

    @override
    def forward(self, nodes: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.conv(self.embedding(nodes), edge_index)
        return rows


def test_an_embedding_of_all_nodes_is_exact() -> None:
    """As the refusals of LightGCN and LINKX say: every rank holds it, and its gradients are summed."""
    alone, *models = (_seeded(lambda: _Embedded(nn.LGConv())) for _ in range(1 + PARTS))
    torch.autograd.backward(alone(torch.arange(40), WHOLE.edge_index).tanh().sum())

    def work(part: GraphPart) -> Any:
        model = distribute(models[part.rank], part)
        torch.autograd.backward(ug.mean(model(part.owned, part.edge_index).tanh(), 1, part))
        ug.sum_gradients(model, part)
        return [parameter.grad for parameter in model.parameters()]

    expected = [parameter.grad for parameter in alone.parameters()]
    for grads in on_parts(WHOLE, PARTS, work):
        torch.testing.assert_close(grads, expected, rtol=0, atol=1e-10)


class _Plain(torch.nn.Module):
    """Sums the rows of the sources without a word to anybody."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Index the rows by the sources."""
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


class _WithHalo(_Plain):
    def __init__(self, part: GraphPart) -> None:
        super().__init__()
        self.part = part

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Fetch the rows first."""
        return torch.zeros_like(x).index_add(0, edge_index[1], ug.halo(x, self.part)[edge_index[0]])


def test_a_plain_module_calls_halo_or_is_told_to() -> None:
    """A model without PyG's layers is exact with `halo`; without it the error names the function."""

    def work(part: GraphPart) -> torch.Tensor | None:
        with pytest.raises(SpecError, match=r"ug.torch.halo\(rows, part\)\[edge_index\[0\]\]"):
            distribute(_Plain(), part)(part.x, part.edge_index)
        with pytest.raises(IndexError) as raised:
            distribute(_Plain(), part, check=False)(part.x, part.edge_index)
        assert "ug.torch.halo(rows, part)[edge_index[0]]" in raised.value.__notes__[0]
        return ug.gather(distribute(_WithHalo(part), part)(part.x, part.edge_index), part)

    expected = _Plain()(WHOLE.x, WHOLE.edge_index)
    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], expected)


class _Undirected(torch.nn.Module):
    """Sends messages along both directions of each edge, in one list."""

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv = conv

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.conv(x, torch.cat([edge_index, edge_index.flip(0)], 1))


@pytest.mark.parametrize("kind", [nn.SAGEConv, nn.GATConv])
def test_edges_into_halo_nodes_are_refused(kind: Any) -> None:
    """PyG's errors, of a size or an index, say nothing about parts. Nor do those of loops of halo nodes."""

    def work(part: GraphPart) -> None:
        with pytest.raises(
            SpecError, match=r"a part holds the edges into its nodes: .* edge_index\.flip\(0\) with all edges"
        ):
            distribute(_Undirected(kind(8, 4)), part)(part.x, part.edge_index)
        with pytest.raises(SpecError, match=r"give add_self_loops num_nodes=part\.num_owned"):
            distribute(nn.SAGEConv(8, 4), part)(part.x, add_self_loops(part.edge_index)[0])

    on_parts(WHOLE, PARTS, work)


@pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")
@pytest.mark.parametrize("kind", [nn.GCNConv, nn.GATConv, lambda *sizes: nn.ChebConv(*sizes, K=2)])
def test_a_matrix_as_edges_is_refused_where_loops_or_degrees_are_taken(kind: Any) -> None:
    """PyG's errors, an assertion without words or an operator that a sparse tensor lacks, do not say what to give."""

    def work(part: GraphPart) -> None:
        sizes = (part.num_owned, part.num_owned + part.num_halo)
        ones = torch.ones(part.edge_index.shape[1])
        matrix = torch.sparse_coo_tensor(part.edge_index.flip(0), ones, sizes).to_sparse_csr()
        with pytest.raises(SpecError, match=r"a sparse matrix .* expected part\.edge_index"):
            distribute(kind(8, 4), part)(part.x, matrix)

    on_parts(WHOLE, PARTS, work)


def test_misuse_of_a_distributed_model_is_refused() -> None:
    """Each with one line: rows that have their halo already, a batch, sparse edges, a second time, other rows."""

    def work(part: GraphPart) -> None:
        model = distribute(nn.Sequential("x, e", [(nn.SAGEConv(8, 8), "x, e -> x")]), part)
        with pytest.raises(SpecError, match="fetches the halo rows by itself"):
            model(ug.halo(part.x, part), part.edge_index)
        with pytest.raises(SpecError, match="given as EdgeIndex"):
            model(part.x, EdgeIndex(part.edge_index))
        with pytest.raises(SpecError, match="distributed already"):
            distribute(model, part)
        with pytest.raises(SpecError, match="expected no batch"):
            distribute(nn.GraphNorm(8), part)(part.x, torch.zeros(part.num_owned, dtype=torch.int64))
        for exchange in (ug.halo, ug.gather):
            with pytest.raises(ValueError, match=rf"\(3, 8\): expected num_owned = {part.num_owned} rows"):
                exchange(part.x[:3], part)
        with pytest.raises(InputError, match=r"part\.num_train"):
            ug.mean(part.x.sum(), 0, part)

    on_parts(WHOLE, PARTS, work)


NORMS_OF_16_BITS: list[Callable[[], torch.nn.Module]] = [
    lambda: torch.nn.BatchNorm1d(8),
    lambda: nn.InstanceNorm(8, track_running_stats=True),
    lambda: nn.GraphNorm(8),
    nn.PairNorm,
    lambda: nn.LayerNorm(8),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("whole_model", [False, True])
@pytest.mark.parametrize("make", NORMS_OF_16_BITS)
def test_rows_of_16_bits_are_summed_in_float32(
    make: Callable[[], torch.nn.Module], dtype: torch.dtype, *, whole_model: bool
) -> None:
    """As torch does; also where the parameters are float32 (autocast). Float16 ends at 65504."""
    rows = (WHOLE.x * 90 + 100).to(dtype)
    exact = make().double()
    expected = exact(rows.double())

    def module() -> torch.nn.Module:
        return make().to(dtype if whole_model else torch.float32)

    def work(part: GraphPart) -> torch.Tensor | None:
        model = distribute(module(), part)
        out = ug.gather(model(rows[part.owned]), part)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer.double(), exact.get_buffer(name).double(), rtol=0.01, atol=0.01)
        return out

    found, *_ = on_parts(WHOLE, PARTS, work)
    assert found is not None
    assert found.dtype == module()(rows).dtype
    torch.testing.assert_close(found.double(), expected.detach(), rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


@pytest.mark.parametrize(
    "make", [make for make in NORMS_OF_16_BITS if isinstance(getattr(make(), "weight", None), torch.Tensor)]
)
def test_rows_that_are_all_equal_have_pyg_s_gradient(make: Callable[[], torch.nn.Module]) -> None:
    """Of activations that are all 0 the gradient of LayerNorm was no number."""
    up = torch.arange(WHOLE.x.numel(), dtype=torch.float64).view_as(WHOLE.x)

    def gradient(module: torch.nn.Module, up: torch.Tensor) -> torch.Tensor | None:
        rows = torch.zeros_like(up, requires_grad=True)
        torch.autograd.backward((module(rows) * up).sum())
        return rows.grad

    def work(part: GraphPart) -> torch.Tensor | None:
        found = gradient(distribute(make().double(), part), up[part.owned])
        return None if found is None else ug.gather(found, part)

    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], gradient(make().double(), up))
