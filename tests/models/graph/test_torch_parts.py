"""What a network on tensors is given on a part: the halo, sums over ranks, normalisations, dropout, refusals."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch_geometric import EdgeIndex, nn, utils

from models.graph.layers_of_pyg import Case, Net, check_exact, kinds, weighted
from models.graph.torch_parts import PARTS, WHOLE, each_part, on_parts
from unilaunch.errors import InputError, SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart

pytestmark = pytest.mark.usefixtures("float64")


def _nodes(part: GraphPart) -> torch.Tensor:
    """Return the global id of each owned and each halo node."""
    return ug.halo(part.owned, part)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
@each_part()
def test_rows_of_any_type_arrive(part: GraphPart, dtype: torch.dtype) -> None:
    """In the halo and on rank 0, also of a view that is conjugated when it is read; the next exchange changes none."""
    whole: Any = (9 * WHOLE.x).view(40, 2, 4).to(dtype).conj()
    rows = whole[part.owned]
    first, second, gathered = ug.halo(rows, part), ug.halo(rows.new_zeros(rows.shape), part), ug.gather(rows, part)
    assert not second.to(torch.complex128).any()
    assert (gathered is None) == (part.rank > 0)
    for found, expected in ((first, whole[_nodes(part)]), (gathered, whole)):
        if found is not None:
            assert found.dtype == dtype
            assert torch.equal(found.to(torch.complex128), expected.to(torch.complex128))


@each_part()
def test_features_are_sent_once(part: GraphPart) -> None:
    """Until somebody writes to them; a tensor that only equals them is sent each time. Also if inference came first."""
    with torch.inference_mode():
        assert torch.equal(ug.halo(part.x, part), WHOLE.x[_nodes(part)])
    first = ug.halo(part.x, part)
    torch.autograd.backward((first @ torch.ones(8, requires_grad=True)).sum())
    assert ug.halo(part.x, part) is first
    assert ug.halo(part.x.clone(), part) is not first
    part.x.mul_(2)
    for _ in range(2):
        found = ug.halo(part.x, part)
        assert torch.equal(found, 2 * WHOLE.x[_nodes(part)])
        found.zero_()


@each_part()
def test_sum_halo_is_the_gradient_of_halo(part: GraphPart) -> None:
    rows, up = part.x.clone().requires_grad_(), WHOLE.x[_nodes(part)].sin()
    torch.autograd.backward((ug.halo(rows, part) * up).sum())
    torch.testing.assert_close(ug.sum_halo(up, part), rows.grad, rtol=0, atol=0)


def test_mean_is_the_whole_graphs_and_its_gradient_this_ranks_share() -> None:
    """Every rank returns the same number, of losses and of their sum, also after a backward has freed the loss."""

    def work(part: GraphPart) -> float:
        value, count = (part.x.sum() * 1.0).requires_grad_(), part.num_nodes
        loss, mean = (part.x.clone().requires_grad_() * 2.0).sum() * 0.5, ug.mean(value, count, part)
        torch.autograd.backward(mean)
        torch.autograd.backward(loss)
        assert value.grad == 1 / 40
        for again in (loss, part.x):
            assert ug.mean(again, count, part).item() == pytest.approx(mean.item(), abs=1e-12)
        half = torch.full((300,), 500.0, dtype=torch.float16)  # torch's own mean adds in float32, too
        assert ug.mean(half, 300 * part.world_size, part) == 500
        return mean.item()

    means = on_parts(WHOLE, PARTS, work)
    assert means[0] == pytest.approx(WHOLE.x.sum().item() / 40, abs=1e-12)
    assert len(set(means)) == 1


@each_part()
def test_gradients_are_summed_where_some_ranks_have_none(part: GraphPart) -> None:
    """A parameter that no rank used keeps None, as in one process. Bools are counted, as torch's own sum does."""
    used, some, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    half = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
    used.grad, half.grad = torch.full((2,), part.rank + 1.0), torch.ones_like(half)
    some.grad = torch.tensor([5.0, 7.0]) if part.rank == 1 else None
    ug.sum_gradients([used, some, unused, half], part)
    found = [p.grad if p.grad is None else p.grad.tolist() for p in (used, some, unused, half)]
    assert found == [[6.0, 6.0], [5.0, 7.0], None, [3.0] * 3]
    assert ug.sum_ranks(torch.tensor([True, part.rank == 0]), part).tolist() == [PARTS, 1]


def test_a_gradient_that_two_models_share_is_summed_once(caplog: pytest.LogCaptureFixture) -> None:
    """A second sum would count it once for each rank. One line tells of gradients that were added to a sum."""

    def work(part: GraphPart) -> None:
        part.ranks.has_loss = True
        shared, own = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        for expected in (6, 24):  # the second gradients are added to the first sums
            torch.autograd.backward((shared * own * (part.rank + 1)).sum())  # 1, 2 and 3
            ug.sum_gradients([shared], part)
            assert not caplog.records or expected == 24
            ug.sum_gradients([shared, own], part)
            assert shared.grad == own.grad == expected

    on_parts(WHOLE, PARTS, work)
    assert "sum_gradients" in caplog.text


def test_dropout_does_not_depend_on_the_parts() -> None:
    """The same elements are dropped on one part and on three."""

    def work(part: GraphPart) -> Any:
        return ug.gather(ug.dropout(part.x, part, 0.5, seed=1, step=2), part)

    (alone,), (first, *_) = on_parts(WHOLE, 1, work), on_parts(WHOLE, PARTS, work)
    assert torch.equal(alone, first)
    kept = alone != 0
    assert torch.equal(alone[kept], 2 * WHOLE.x[kept])
    assert 0.3 < kept.double().mean() < 0.7


@each_part()
def test_accuracy_is_of_the_whole_graph(part: GraphPart) -> None:
    """The same float on every rank, also where a rank has none of the nodes."""
    scores = torch.randn(len(WHOLE.x), 3, generator=torch.Generator().manual_seed(0))
    mask = WHOLE.owned % 7 == 0  # all are of one rank
    ug.barrier(part)
    expected = (scores.argmax(1) == WHOLE.y)[mask].double().mean().item()
    assert ug.accuracy(scores[part.owned], part.y, mask[part.owned], part) == expected


Make = Callable[[], Any]
NORMS: list[Make] = [
    lambda: torch.nn.BatchNorm1d(8), lambda: nn.InstanceNorm(8, affine=True, track_running_stats=True),
    lambda: nn.GraphNorm(8), nn.PairNorm, lambda: nn.LayerNorm(8),
]  # fmt: skip
MORE_NORMS: list[Make] = [
    lambda: nn.BatchNorm(8, allow_single_element=True), lambda: nn.LayerNorm(8, mode="node"), nn.MeanSubtractionNorm,
    nn.GraphSizeNorm, lambda: nn.DiffGroupNorm(8, groups=2), lambda: nn.MessageNorm(learn_scale=True),
]  # fmt: skip


def _normalised(norm: Any, x: torch.Tensor, graph: Any) -> torch.Tensor:
    """Return the rows of three steps, of rows that are all equal, and in evaluation."""
    more = [graph.x] if isinstance(norm, nn.MessageNorm) else []
    found = [norm(x * (step + 1) + step, *more) for step in range(3)]
    equal = norm(x - x.detach(), *more) * x.detach()
    return torch.cat([*found, equal, norm.eval()(x, *more)], 1)


@pytest.mark.parametrize("make", [*NORMS, *MORE_NORMS])
def test_a_normalisation_is_exact_on_parts(make: Make) -> None:
    """Rows, gradients, running statistics over three steps, and the rows in evaluation."""
    check_exact(Case(make, _normalised))


@pytest.mark.parametrize(("dtype", "whole_model"), [(torch.float16, True), (torch.bfloat16, False)])
@pytest.mark.parametrize("make", NORMS)
def test_rows_of_16_bits_are_summed_in_float32(make: Make, dtype: torch.dtype, *, whole_model: bool) -> None:
    """As torch does; also where the parameters are float32 (autocast). Float16 ends at 65504; bfloat16 is short."""
    rows, exact = (WHOLE.x * 90 + 100).to(dtype), make().double()
    expected, own_type = exact(rows.double()).detach(), dtype if whole_model else torch.float32

    def work(part: GraphPart) -> None:
        model = distribute(make().to(own_type), part)
        out = model(rows[part.owned])
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer.double(), exact.get_buffer(name).double(), rtol=0.01, atol=0.01)
        assert out.dtype == make().to(own_type)(rows).dtype
        near = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(out.detach().double(), expected[part.owned], rtol=near, atol=1e-2)

    on_parts(WHOLE, PARTS, work)


@each_part()
def test_our_batch_norm_is_torchs(part: GraphPart) -> None:
    """`ug.torch.BatchNorm`, for a model that is not distributed, has torch's parameters, keys and results."""
    alone, norm = torch.nn.BatchNorm1d(8), ug.BatchNorm(8, part)
    torch.testing.assert_close(norm(part.x), alone(WHOLE.x)[part.owned])
    torch.testing.assert_close(norm.state_dict(), alone.state_dict())


def _jumping() -> Net:
    """Return several layers, two sets of edges, and the rows of all layers side by side."""

    def forward(net: Any, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> Any:
        first = net.gat(x, edge_index)
        second = net.gcn(first, edge_index[:, weight > 1])
        rows = net.jump([first, second, net.sage(second, edge_index)])
        return net.last(rows, edge_index, weight)

    jump, last = nn.JumpingKnowledge("lstm", 8, 3), nn.GraphConv(8, 3)
    return Net(forward, gat=nn.GATConv(8, 8), gcn=nn.GCNConv(8, 8), sage=nn.SAGEConv(8, 8), jump=jump, last=last)


def _sums_by_hand(_: Any, x: torch.Tensor, g: Any) -> torch.Tensor:
    rows = ug.halo(x, g) if isinstance(g, GraphPart) else x
    return torch.zeros_like(x).index_add(0, g.edge_index[1], rows[g.edge_index[0]].tanh())


def _correlated(_: Any, x: torch.Tensor, g: Any) -> torch.Tensor:
    sums = ug.sum_ranks(x.square().sum(0), g) if isinstance(g, GraphPart) else x.square().sum(0)
    return x / (sums / 40).sqrt()


MODELS: dict[str, Case] = {
    "a user's own": Case(_jumping, weighted),
    "GAT": Case(lambda: nn.GAT(8, 8, num_layers=2, out_channels=3, norm="batch", jk="cat")),
    "EdgeCNN": Case(lambda: nn.EdgeCNN(8, 8, num_layers=2, out_channels=3, norm="batch", jk="cat")),
    "an embedding of all nodes": Case(  # what stands in the place of LightGCN, and of a part of LINKX
        lambda: nn.Sequential("n, e", [(torch.nn.Embedding(40, 4), "n -> x"), (nn.LGConv(), "x, e -> x")]),
        lambda model, _, g: model(g.owned, g.edge_index)),
    "ids in place of rows": Case(
        lambda: nn.RGCNConv(40, 4, num_relations=3), lambda layer, _, g: layer(g.owned, g.edge_index, kinds(g))),
    "ug.halo": Case(torch.nn.Identity, _sums_by_hand),
    "ug.sum_ranks": Case(torch.nn.Identity, _correlated),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_exact(name: str) -> None:
    """PyG's ready-made networks, and what refusals propose."""
    check_exact(MODELS[name])


@each_part(2)
def test_a_deep_copy_has_weights_of_its_own(part: GraphPart) -> None:
    model, given = distribute(_jumping(), part, check=False), (part.x, part.edge_index, part.edge_weight)
    first, scores = copy.deepcopy(model), model(*given)
    assert torch.equal(first(*given), scores)
    torch.nn.init.zeros_(next(first.parameters()))
    assert torch.equal(model(*given), scores)
    assert not torch.equal(first(*given), scores)


def _plain(_: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


def _on(model: Any, part: GraphPart, *given: Any) -> Any:
    """Call the distributed model, by default with rows and edges."""
    distributed: Any = distribute(model, part)
    return distributed(*(given or (part.x, part.edge_index)))


def _both_ways(model: Any, p: GraphPart) -> Any:
    return _on(model, p, p.x, torch.cat([p.edge_index, p.edge_index.flip(0)], 1))


def _with_matrix(model: Any, p: GraphPart) -> Any:
    sizes, ones = (p.num_owned, p.num_owned + p.num_halo), torch.ones(p.edge_index.shape[1])
    return _on(model, p, p.x, torch.sparse_coo_tensor(p.edge_index.flip(0), ones, sizes).to_sparse_csr())


def _own_degrees(p: GraphPart) -> torch.Tensor:
    return torch.bincount(utils.degree(p.edge_index[1], p.num_owned, torch.int64), minlength=50)


def _pna(degrees: torch.Tensor) -> Any:
    return nn.PNAConv(8, 4, ["mean"], ["attenuation"], degrees)


BACK = r"a part holds the edges into its nodes: .* edge_index\.flip\(0\)"
SAGE = partial(nn.SAGEConv, 8, 8)
MATRIX, ROWS = r"expected part\.edge_index", r"\(3, 8\): expected num_owned = \d+ rows"
#: What a script does, and what is said of it; "" is what a refusal proposes.
MISUSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a pool": (lambda p: _on(nn.TopKPooling(8), p), "TopKPooling"),
    "LINKX": (lambda p: _on(nn.LINKX(40, 8, 8, 3, 2), p), "SparseLinear .*: take SimpleConv"),
    "LSTM": (lambda p: _on(SAGE(aggr="lstm"), p), r"aggr_module \(LSTMAggregation\)"),
    "flow": (lambda p: _on(SAGE(flow="target_to_source"), p), "expected flow='source_to_target'"),
    "no width": (lambda p: _on(nn.SAGEConv(-1, 8), p), "number of input columns"),
    "a scale": (lambda p: _on(nn.CorrectAndSmooth(2, 0.5, 2, 0.5), p), "take autoscale=False"),
    "no halo": (lambda p: _on(Net(_plain), p), r"ug.torch.halo\(rows, part\)\[edge_index\[0\]\]"),
    "edges into halo nodes": (lambda p: _both_ways(nn.SAGEConv(8, 4), p), BACK),
    "edges into halo nodes, attention": (lambda p: _both_ways(nn.GATConv(8, 4), p), BACK),
    "loops of halo nodes": (lambda p: _on(SAGE(), p, p.x, utils.add_self_loops(p.edge_index)[0]), r"=part\.num_owned"),
    "a matrix, degrees": (lambda p: _with_matrix(nn.GCNConv(8, 4), p), MATRIX),
    "a matrix, attention": (lambda p: _with_matrix(nn.GATConv(8, 4), p), MATRIX),
    "a matrix, Laplacian": (lambda p: _with_matrix(nn.ChebConv(8, 4, K=2), p), MATRIX),
    "sparse edges": (lambda p: _on(SAGE(), p, p.x, EdgeIndex(p.edge_index)), "EdgeIndex"),
    "rows with halo": (lambda p: _on(SAGE(), p, ug.halo(p.x, p), p.edge_index), "fetches the halo rows by itself"),
    "a second time": (lambda p: distribute(distribute(SAGE(), p), p), "distributed already"),
    "a batch": (lambda p: _on(nn.GraphNorm(8), p, p.x, p.y * 0), "batch"),
    "no ids": (lambda p: _on(nn.RGCNConv(40, 4, 3), p, None, p.edge_index, kinds(p)), "expected x=part.owned"),
    "ids of another": (
        lambda p: _on(nn.FastRGCNConv(40, 4, 3), p, p.owned, p.edge_index, kinds(p)), "RGCNConv with x=part.owned"),
    "labels": (lambda p: _on(nn.LabelPropagation(2, 0.9), p, p.y, p.edge_index), r"num_classes=part\.num_classes"),
    "a column for each class": (
        lambda p: _on(nn.LabelPropagation(2, 0.9), p, utils.one_hot(p.y, num_classes=p.num_classes), p.edge_index), ""),
    "degrees of one part": (lambda p: _on(_pna(_own_degrees(p)), p), "deg, the histogram.*differs between the ranks"),
    "degrees of all ranks": (lambda p: _on(_pna(ug.sum_ranks(_own_degrees(p), p)), p), ""),
    "no nodes": (lambda p: ug.mean(p.x.sum(), 0, p), r"part\.num_train"),
    "an empty mask": (lambda p: ug.accuracy(p.x[:, :3], p.y, p.y < 0, p), "mean over 0 nodes"),
    "halo of some": (lambda p: ug.halo(p.x[:3], p), ROWS),
    "gather of some": (lambda p: ug.gather(p.x[:3], p), ROWS),
    "dropout of ids": (lambda p: ug.dropout(p.owned[:, None], p, 0.2, seed=0, step=0), "torch.int64: expected floats"),
    "a device": (lambda p: p.to("meta"), r"on cpu.* ug\.load\(\.\.\., device='meta'\)"),
    "its device": (lambda p: p.to("cpu").to(torch.device("cpu")), ""),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")
@pytest.mark.parametrize("name", MISUSES)
@each_part()
def test_misuse_is_refused(part: GraphPart, name: str) -> None:
    """With what is expected: PyG's own errors, of a size or an index, say nothing about parts."""
    call, words = MISUSES[name]
    if not words:
        call(part)
        return
    with pytest.raises((SpecError, InputError, ValueError, TypeError), match=words):
        call(part)
