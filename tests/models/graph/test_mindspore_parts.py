"""ug.mindspore in one process: what it refuses, and the forms of its arguments. The curves are in tests/jobs."""

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import unilaunch_graph as ug
from graphs_by_hand import make_directed_graph, parts_of
from jobs.mpirun import alone
from models.graph.torch_parts import make_whole
from unilaunch.errors import InputError, SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph import mindspore as um
from unilaunch_graph.mindspore.part import make_part
from unilaunch_graph.mindspore.ranks import Ranks


def part_of(num_nodes: int, edges: list[tuple[int, int]], ranks: Ranks | None = None) -> Any:
    """Return a whole graph as the part of the only rank."""
    (part,) = parts_of(make_directed_graph(num_nodes, edges))
    return make_part(part, ranks or Ranks(0, 1, Alone()))


RING = part_of(12, [((i + step) % 12, i) for i in range(12) for step in (1, 2)])


def _parameter(values: Any, kind: Any = None) -> ms.Parameter:
    return ms.Parameter(Tensor(values, kind), name="w")


def test_a_part_without_edges_gets_a_node_that_gather_and_fetch_leave_out() -> None:
    """And a normalisation, which takes other rows all, and a statistic over rows, as docs/graphs.md writes it."""
    part = part_of(3, [])
    x = part.x.asnumpy()[:3]
    assert part.owned.tolist() == [0, 1, 2, -1]
    assert part.edge_index.asnumpy().tolist() == [[3], [3]]
    assert not any(mask.asnumpy()[3] for mask in (part.train_mask, part.val_mask, part.test_mask))
    np.testing.assert_array_equal(np.asarray(um.gather(part.x, part)), x)
    np.testing.assert_array_equal(um.fetch(part.x, [2, 0, 2], part).asnumpy(), x[[2, 0, 2]])
    real = Tensor(part.owned >= 0)[:, None]
    means = um.sum_ranks(((part.x + 1) * real).sum(0), part) / part.num_nodes
    np.testing.assert_allclose(means.asnumpy(), x.mean(0) + 1)
    norm = copy.deepcopy(um.BatchNorm(3, part, momentum=1.0)).set_train()
    for rows, mean, variance in ((part.x, 1, 1), (part.x[1:3], 1.5, 0.5)):
        norm(rows)
        assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([mean] * 3, [variance] * 3)


def test_the_node_that_is_added_counts_in_no_mean_over_all_nodes() -> None:
    """Neither in the value nor in the gradient."""
    part = part_of(3, [])
    weight = _parameter(np.ones(4, np.float32))
    value, gradient = ms.value_and_grad(lambda: um.mean(weight * 2, part.num_nodes, part), None, [weight])()
    assert float(value) == 2.0
    np.testing.assert_allclose(gradient[0].asnumpy(), [2 / 3, 2 / 3, 2 / 3, 0])
    other = part_of(4, [(0, 1)], part.ranks)  # a graph with edges, loaded beside it
    assert float(um.mean(weight, other.num_nodes, other)) == 1.0


@pytest.mark.parametrize(("losses", "count", "edges", "mean", "kind"), [
    (np.zeros((0, 3), np.float32), 2, [(0, 1)], 0, ms.float32),  # MindSpore's own is garbage
    (np.array([True, False, True]), 4, [(0, 1)], 0.5, ms.float64),
    (np.full((3, 9), 60000, np.float16), 27, [(0, 1)], 60000, ms.float32),  # the sum would overflow
    (np.arange(8, dtype=np.float32).reshape(4, 2), 6, [], 15 / 6, ms.float32),  # of 3 nodes, and of the one added
], ids=["no rows", "bools", "float16", "a part without edges"])  # fmt: skip
def test_means(losses: Any, count: int, edges: list[tuple[int, int]], mean: float, kind: Any) -> None:
    value = um.mean(Tensor(losses), count, part_of(3, edges))
    assert (float(value), value.dtype) == (mean, kind)


def test_sums_of_bools_count() -> None:
    """MPI has no sum of them; the mean of no messages is 0; an accuracy is a float of Python, of a mask's nodes."""
    part = part_of(3, [(0, 1), (1, 1), (0, 0)])
    edges = Tensor([True] * 3)
    assert um.segment_sum(edges, part).asnumpy().tolist() == [1, 2, 0]
    assert um.segment_mean(edges, part).asnumpy().tolist() == [1, 1, 0]
    found = um.sum_ranks(Tensor([True, False]), part)
    assert (found.dtype, found.asnumpy().tolist()) == (ms.int32, [1, 0])
    scores, mask = ops.one_hot(Tensor([1, 0, 0]), 2, Tensor(1.0), Tensor(0.0)), Tensor([True, False, True])
    um.barrier(part)
    assert [um.accuracy(scores, Tensor(y), mask, part) for y in ([1, 1, 0], [0, 0, 0])] == [1.0, 0.5]


@pytest.mark.parametrize(("call", "words"), [
    (lambda p: um.mean(p.x.sum(), 2, p), "one loss for each node"),
    (lambda p: um.mean(p.x, 0, p), "mean over 0 nodes"),
    (lambda p: um.fetch(p.x, np.zeros((2, 0), np.int64), p), "fetch: no nodes: MindSpore needs one or more"),
    (lambda p: um.fetch(p.x, [3], p), "fetch: node 3: expected ids from 0 to 2"),
    (lambda p: um.sum_gradients((p.x, (p.x,)), p), "the gradients of the weights, the second one"),
    (lambda p: um.dropout(p.y[:, None], p, 0.2, seed=0, step=0), "rows are Int.*: expected floats"),
    (lambda p: um.halo(p.x[:2], p), "expected num_owned = 3 rows"),
    (lambda p: um.segment_mean(p.x[:2], p), "expected edges = 1 rows"),
    (lambda p: um.BatchNorm(3, p).set_train()(p.x[:, :1]), r"x has the shape \(3, 1\): expected \(rows, 3\)"),
    (lambda p: um.BatchNorm(3, p).set_train()(p.x[:1]), "1 row on all ranks"),
    (lambda p: ms.jit(um.BatchNorm(3, p).set_train().construct)(p.x), "works in PyNative mode: call it outside of"),
    (lambda p: ms.jit(um.SAGEConv(3, 2).construct)(p.x, p), "works in PyNative mode: call it outside of"),
    (lambda p: um.SAGEConv(3, 2)(p.x.astype(ms.int32), p), "SAGEConv: x is Int32: expected float16"),
    (lambda p: um.GATConv(3, 2)(p.x[:, 0], p), r"GATConv: x has the shape \(3,\)"),
    (lambda p: um.SAGEConv(3, 2)(p.x, p.edge_index), "not edge_index"),
    (lambda p: um.Adam([_parameter(p.x)], [0.1]), r"optimizer\.learning_rate in each step"),  # type: ignore[arg-type]
    (lambda p: um.Adam([_parameter(p.x)])([p.x, p.x]), "2 gradients for 1 parameters"),
    (lambda p: um.Adam([_parameter(p.x)])([p.x[:2]]), "1 gradients for 1 parameters: number"),
])  # fmt: skip
def test_misuse_is_refused(call: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the compiler writes what it has understood
    with pytest.raises((ValueError, TypeError, InputError, SpecError), match=words):
        call(part_of(3, [(0, 1)]))


def test_a_row_of_zeros_is_normalised_with_its_gradient() -> None:
    """Of an isolated node without features, in a layer without a bias: no gradient is NaN."""
    part = part_of(3, [(2, 1)])
    layer = um.SAGEConv(3, 2, normalize=True, bias=False)
    value, gradients = ms.value_and_grad(lambda: layer(part.x, part).sum(), None, layer.trainable_params())()
    assert not part.x.asnumpy()[0].any()
    assert all(np.isfinite(numbers.asnumpy()).all() for numbers in (value, *gradients))


@pytest.mark.parametrize("kind", [ms.float16, ms.float64], ids=str)
@pytest.mark.parametrize(("width", "layer"), [(3, um.SAGEConv), (8, um.GATConv)])
def test_the_gradient_of_a_bias_is_the_sum_of_the_rows_gradients(layer: Any, width: int, kind: Any) -> None:
    """Of 3,000 rows, in the bias's type: summed in float16 they would stop at 2048."""
    part, net = part_of(3000, [(0, 1), (1, 2)]), layer(4, width, dtype=kind)
    bias = net.bias if layer is um.GATConv else net.lin_l.bias
    (gradient,) = ms.grad(lambda rows: net(rows, part), None, [bias])(ops.ones((3000, 4), kind))
    assert (gradient.dtype, gradient.tolist()) == (kind, [3000] * width)


LATE = """
import mindspore as ms
import unilaunch_graph.mindspore as um
from mindspore.graph.api import _pynative_executor
x = ms.ops.ones((3,), ms.float32) + 1
part = um.load("graph.npz", data_dir=".")
conv, targets = um.SAGEConv(2, 2), part.edge_index[1]
softmax = lambda rows: um.segment_softmax(ms.ops.gather(rows, targets, 0), part)
for operation in (lambda rows: um.halo(rows, part), lambda rows: conv(rows, part), softmax):
    first = ms.grad(lambda rows: (operation(rows) ** 2).sum())
    try:
        ms.grad(lambda rows: (first(rows) * rows).sum())(part.x)
    except NotImplementedError as error:
        print(error)
    _pynative_executor.clear_res()  # what raised leaves MindSpore in the middle of a gradient
    _pynative_executor.set_grad_flag(False)
ms.set_context(mode=ms.GRAPH_MODE)
um.load("graph.npz", data_dir=".")
"""


def test_a_graph_is_loaded_after_the_first_operation_and_a_second_derivative_is_refused(tmp_path: Path) -> None:
    """MindSpore would take it to be 0. In graph mode nothing is loaded. In a process that has not chosen a device."""
    np.savez(tmp_path / "graph.npz", edge_index=[[0], [1]], x=np.ones((9, 2)), y=np.arange(9) % 3)
    job = alone(["-c", LATE], tmp_path)
    assert (job.returncode, job.stdout.count("unilaunch's operators have no second derivative")) == (1, 3)
    assert "call ms.set_context(mode=ms.PYNATIVE_MODE)" in job.stderr


def test_adam_follows_the_script_and_compiled_functions_follow_adam() -> None:
    """A checkpoint and a schedule; what `ms.jit` has compiled reads the memory that the parameters had then."""
    parameter, ones = _parameter(np.zeros(3, np.float32)), Tensor(np.ones(3, np.float32))
    optimizer, norm = um.Adam([parameter], 0.1), um.BatchNorm(3, RING)

    @ms.jit  # type: ignore[untyped-decorator]
    def compiled(rows: Tensor) -> Tensor:
        return norm(rows) + parameter

    for expected in (0, -0.1):
        np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(compiled(RING.x).asnumpy(), (norm(RING.x) + parameter).asnumpy(), rtol=1e-6)
        optimizer(ones)
        norm.set_train()(RING.x)
        norm.set_train(False)
    parameter.set_data(ones)
    optimizer.learning_rate = 0.0
    optimizer((ones,))
    np.testing.assert_array_equal(parameter.asnumpy(), 1)


@pytest.mark.parametrize("kind", [ms.float16, ms.bfloat16, ms.float64], ids=str)
def test_adam_goes_on_from_a_checkpoint(kind: Any, tmp_path: Path) -> None:
    """As if it had not been interrupted. Numbers of 16 bits stand in 32: their squares are 0, small steps are lost."""
    gradient = Tensor(np.array([1, 1e-5, 0.0]), kind)

    def train(start: Any, num_steps: int, state: Any = None) -> tuple[Any, Any]:
        parameter = _parameter(start, kind)
        optimizer = um.Adam([parameter], 1e-4)
        if state:
            optimizer.load_state_dict(state)
        for _ in range(num_steps):
            optimizer(gradient)
        return parameter.astype(ms.float64).asnumpy(), optimizer.state_dict()

    whole, _ = train(np.ones(3), 100)
    np.testing.assert_allclose(whole, [0.99, 0.99, 1], rtol=0, atol=0.003)
    half, state = train(np.ones(3), 30)
    ms.save_checkpoint(state, str(tmp_path / "adam.ckpt"))
    resumed, _ = train(half, 70, ms.load_checkpoint(str(tmp_path / "adam.ckpt")))
    np.testing.assert_array_equal(resumed, whole)


GAT, SAGE = um.GATConv(3, 4, heads=2), um.SAGEConv(8, 2, normalize=True, project=True)


@pytest.mark.parametrize(("kind", "near"), [(ms.float32, 1e-6), (ms.bfloat16, 0.01)], ids=str)
def test_predict_by_layers_is_predict_of_the_whole(kind: Any, near: float, tmp_path: Path) -> None:
    """In blocks of a few nodes; `ug.predict` takes the framework of the part. 16-bit rows are written as float32."""

    def whole(x: Tensor, part: Any) -> Tensor:
        return SAGE(ops.elu(GAT(x, part)), part).astype(kind)

    def narrow(x: Tensor) -> Tensor:
        return x.astype(kind)

    expected = whole(RING.x, RING).astype(ms.float32).asnumpy()
    for model in (whole, [*nn.CellList([GAT, nn.ELU(), SAGE]), narrow]):
        found = ug.predict(model, RING, tmp_path / "out.npz", memory=200).astype(ms.float32).asnumpy()
        arrays = np.load(tmp_path / "out.npz")
        assert arrays["scores"].dtype == np.float32
        for rows in (found, arrays["scores"][RING.owned]):
            np.testing.assert_allclose(rows, expected, rtol=0, atol=near)
        np.testing.assert_array_equal(arrays["classes"], arrays["scores"].argmax(1))
        np.testing.assert_array_equal(arrays["split"][RING.owned], RING.arrays.split)


TRAINING = um.SAGEConv(3, 2).set_train()


@pytest.mark.parametrize(("model", "words"), [
    ([lambda x, part: SAGE(ops.relu(GAT(x, part)), part)], "gives other rows on blocks"),
    ([TRAINING], r"SAGEConv is in training mode: call set_train\(False\)"),
    (lambda x, part: TRAINING(x, part) + 0, "SAGEConv is in training mode"),
    ([lambda x, part: (x, part)], "returned a tuple: expected one tensor"),
])  # fmt: skip
def test_predict_refuses_what_is_not_exact(model: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        um.predict(model, RING, memory=200)


PART = make_part(parts_of(make_whole(60, 300, 8).graph)[0], Ranks(0, 1, Alone()))


class Net(nn.Cell):  # type: ignore[misc]
    """Two layers, a normalisation that holds the part, and what *then* makes of the rows between them."""

    def __init__(self, then: Any) -> None:
        super().__init__()
        self.first, self.last = um.SAGEConv(8, 16), um.GATConv(16, 3)
        self.norm, self.then = um.BatchNorm(16, PART), then

    def construct(self, x: Tensor, part: Any) -> Tensor:  # noqa: D102  (MindSpore's forward)
        return self.last(self.then(ops.relu(self.norm(self.first(x, part))), part), part)


@pytest.mark.parametrize(("then", "refusal", "words"), [
    (lambda x, part: x - um.sum_ranks(x.sum(0), part) / part.num_nodes, None, ""),
    (lambda x, part: x + um.fetch(x, np.array([1, 5, 1]), part).sum(0), None, ""),
    (lambda x, part: um.sum_halo(um.halo(x, part), part), SpecError, "is not exact"),
    (lambda x, _: x - x.mean(0), SpecError, "Net is not exact on parts of a graph"),
    (lambda x, _: x + ops.rand(*x.shape), um.NotCheckedError, "random"),
], ids=["a statistic of all ranks", "any nodes", "copies", "a rank's mean", "random numbers"])  # fmt: skip
def test_what_is_not_exact_on_parts_is_refused_by_numbers(then: Any, refusal: Any, words: str) -> None:
    """By `ug.mindspore.check`; random numbers cannot be checked. No parameter changes."""
    model = Net(then).set_train()
    before = [parameter.asnumpy().copy() for parameter in model.get_parameters()]
    with pytest.raises(refusal, match=words) if refusal else nullcontext():
        um.check(model, PART, PART.x, PART)
    for parameter, value in zip(model.get_parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.asnumpy(), value)
