"""The check by numbers: what is not exact on parts, or of a rank's own rows, is refused before it is used."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch_geometric import nn
from torch_geometric.data import Data

from models.graph.layers_of_pyg import Net
from models.graph.torch_parts import each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.state import refuse_own_statistics

WIDTH, PARTS = 8, 2
WHOLE = make_whole(60, 300, WIDTH)


def _net(then: Callable[[Any, torch.Tensor], Any], kind: type[Net] = Net, **more: torch.nn.Module) -> Net:
    """Return a model with a layer of PyG, and what *then* makes of the model and the rows."""
    return _form(lambda _, rows, *given: rows(*given), then, kind, **more)


def _form(form: Callable[..., Any], then: Any, kind: type[Net] = Net, **more: torch.nn.Module) -> Net:
    """Return a model that is called as *form* says, with itself, what `_net` does, and what it is given."""

    def forward(net: Any, *given: Any) -> Any:
        return form(net, lambda x, edges: then(net, net.conv(x, edges)), *given)

    return kind(forward, conv=nn.GCNConv(WIDTH, WIDTH), lin=torch.nn.Linear(WIDTH, WIDTH), **more)


class Normalised(torch.nn.InstanceNorm1d):
    """A class that is derived from one that is refused by its name."""


def _centred(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(0)


def _detached(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows; their gradient is divided by their number."""
    return rows.detach() + (rows - rows.detach()) / len(rows)


def _rows(part: GraphPart, *more: Any) -> tuple[Any, ...]:
    return part.x.float(), part.edge_index, *more


Make = Callable[[], torch.nn.Module]
#: Models, and what their refusal says besides: the first module whose numbers differ, or the forward of the model.
WRONG: dict[str, tuple[Make, str]] = {
    "F.batch_norm": (lambda: _net(lambda _, x: functional.batch_norm(x, None, None, training=True)), "forward of Net:"),
    "F.normalize": (lambda: _net(lambda _, x: functional.normalize(x, dim=0)), ""),
    "attention": (lambda: _net(lambda net, x: (net.lin(x) @ x.T).softmax(1) @ x), ""),
    "a helper": (lambda: _net(lambda net, x: net.lin(_centred(x))), "forward of Net, before lin (Linear)"),
    "a subclass": (
        lambda: _net(lambda net, x: net.norm(x.T[None])[0].T, norm=Normalised(WIDTH)), "norm (Normalised)"),
    "a loss that is a mean": (lambda: _net(lambda _, x: (x, x.square().mean())), ""),
    "gradients": (lambda: _net(lambda _, x: _detached(x)), ""),
}  # fmt: skip
RIGHT: dict[str, Make] = {
    "rows by themselves": lambda: _net(lambda net, x: functional.layer_norm(net.lin(x), (WIDTH,))),
    "dropout": lambda: _net(lambda _, x: functional.dropout(x, 0.5)),
    "a norm": lambda: _net(lambda net, x: net.norm(x), norm=torch.nn.BatchNorm1d(WIDTH)),
    "a sum over nodes": lambda: _net(lambda _, x: (x, x.square().sum())),
    "torch's default type": lambda: _net(lambda _, x: x @ torch.eye(WIDTH)),
    "several outputs": lambda: _net(lambda _, x: {"rows": x, "parts": [x[:, :2], x.argmax(1)]}),
}
UNCHECKED: dict[str, Make] = {
    "random numbers": lambda: _net(lambda _, x: x + torch.randn_like(x)),
    "numbers of numpy": lambda: _net(lambda _, x: x + float(np.random.rand())),  # noqa: NPY002  (as scripts do)
    "no tensor": lambda: _net(lambda _, x: len(x)),
    "an error": lambda: _net(lambda _, x: x if len(x) in {20, 30} else x[99]),
    "more than 256 MB": lambda: _net(lambda _, x: x, large=torch.nn.Linear(1 << 13, (1 << 12) + 1)),
}


def _outcomes(make: Make, **options: bool) -> list[str]:
    """Return what the first forward on each part raises; "" if it raises nothing."""
    model = make()

    def work(part: GraphPart) -> str:
        distributed = ug.distribute(copy.deepcopy(model), part, **options)
        try:
            distributed(part.x.float(), part.edge_index)
        except SpecError as error:
            return str(error)
        return ""

    return on_parts(WHOLE, PARTS, work)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_exact_on_parts_is_refused(name: str) -> None:
    """On every rank, before it exchanges anything; the model goes through where the check is left out."""
    make, words = WRONG[name]
    assert all("Net is not exact on parts of a graph" in told and words in told for told in _outcomes(make))
    assert _outcomes(make, check=False) == [""] * PARTS


@pytest.mark.parametrize(("name", "make"), [*RIGHT.items(), *UNCHECKED.items()])
def test_what_is_exact_or_unchecked_goes_through(name: str, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The latter is said."""
    assert _outcomes(make) == [""] * PARTS
    assert ("is not checked on parts" in caplog.text) == (name in UNCHECKED)


@each_part(1, whole=WHOLE)
def test_a_check_leaves_no_trace(part: GraphPart) -> None:
    """In parameters, buffers, gradients, generators, and in what a hook of the script keeps."""
    model = ug.distribute(_net(lambda net, x: net.norm(x), norm=torch.nn.BatchNorm1d(WIDTH)).double(), part)
    seen: list[Any] = []
    model.get_submodule("lin").register_forward_hook(lambda *given: seen.append(given))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    ug.check(model, part, part.x, part.edge_index)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert [parameter.grad for parameter in model.parameters()] == [None] * len([*model.parameters()])
    assert not seen


#: Functions of rows and a part, and what is said of those that are not exact.
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], str]] = {
    "the mean of all ranks": (lambda x, part: x - ug.sum_ranks(x.sum(0), part) / part.num_nodes, ""),
    "the largest of all ranks, by a sum": (lambda x, part: x / ug.sum_ranks(
        functional.one_hot(torch.tensor(part.rank), part.world_size)[:, None] * x.abs().amax(0), part).amax(0), ""),
    "a loss of all ranks": (lambda x, part: ug.mean(x.square(), part.num_nodes, part), ""),
    "rows of any nodes": (lambda x, part: x @ ug.fetch(x.tanh(), np.array([0, 3, 0], ">i8"), part).T, ""),
    "rows of all nodes": (lambda x, part: (x.tanh(), ug.gather(x, part))[0], ""),
    "rows with halo": (lambda x, part: ug.halo(x.tanh(), part), ""),
    "a rank's first row": (lambda x, part: x - ug.fetch(x, part.owned[:1], part), "not exact"),
    "a rank's mean": (lambda x, _: _centred(x), "not exact"),
    "a millionth, in float64": (lambda x, _: x + 1e-6 * x.mean(0), "not exact"),
    # ranks that would wait for each other: a part leaves an exchange out, makes one more, or fails alone
    "an exchange less": (lambda x, part: ug.halo(x, part)[: len(x)] if part.edge_index.numel() else x, "one process"),
    "one more": (lambda x, part: x + 0 * ug.sum_ranks(x.sum(0), part) if part.num_halo else x, "one process"),
    "an error": (lambda x, part: x * 0 * part.edge_weight.amax() + x, "it raises"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@each_part(PARTS, whole=WHOLE)
def test_a_function_is_checked_by_itself(part: GraphPart, name: str) -> None:
    """If it calls `ug.torch` with its argument; one that has the part in a variable cannot be checked."""
    function, words = FUNCTIONS[name]
    if words:
        with pytest.raises(SpecError, match=words):
            ug.check(function, part, part.x, part)
        return
    ug.check(function, part, part.x, part)
    if name == "the mean of all ranks":
        with pytest.raises(ug.NotCheckedError):
            ug.check(lambda x: function(x, part), part, part.x)


class _Encoder(Net):
    def encode(self, *given: torch.Tensor) -> Any:
        return self.function(self, *given)


#: How a script enters a model in other ways than by its forward, and what is then refused.
ENTRIES: dict[str, tuple[Callable[[Any], torch.nn.Module], Callable[[Any], Any]]] = {
    "_Encoder.encode": (lambda then: _net(lambda _, x: then(x), _Encoder), lambda model: model.encode),
    "GAE.encode": (lambda then: nn.GAE(_net(lambda _, x: then(x))), lambda model: model.encode),
    "ModuleDict.one": (
        lambda then: torch.nn.ModuleDict({"one": _net(lambda _, x: then(x))}), lambda model: model["one"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_each_method_that_is_given_the_edges_is_checked(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not the model's forward alone; what is exact goes through, and nothing is said of it."""
    make, entry = ENTRIES[name]

    def work(part: GraphPart) -> None:
        given = _rows(part)
        wrong, exact = ug.distribute(make(_centred), part), ug.distribute(make(torch.tanh), part)
        for _ in range(2):
            with pytest.raises(SpecError, match=f"{name} is not exact on parts"):
                entry(wrong)(*given)
        entry(exact)(*given)
        if "encode" in name:
            ug.check(entry(exact), part, *given)

    on_parts(WHOLE, PARTS, work)
    assert not caplog.records


def test_a_method_that_trains_is_not_tried(caplog: pytest.LogCaptureFixture) -> None:
    """It would train a copy too, print, and write files; the forward that it calls is checked."""
    epochs = []

    class Trained(Net):
        def fit(self, x: torch.Tensor, edge_index: torch.Tensor) -> None:
            for _ in range(3):
                self(x, edge_index).sum().backward()
                epochs.append(x)

    def work(part: GraphPart) -> None:
        right, wrong = _net(lambda _, x: x, Trained), _net(lambda _, x: _centred(x), Trained)
        ug.distribute(right, part).fit(part.x.float(), part.edge_index)  # type: ignore[operator]
        with pytest.raises(SpecError, match="Trained is not exact"):
            ug.distribute(wrong, part).fit(part.x.float(), part.edge_index)  # type: ignore[operator]

    on_parts(WHOLE, PARTS, work)
    assert len(epochs) == 3 * PARTS
    assert "Trained.fit is not checked on parts: it calls backward" in caplog.text


@each_part(PARTS, whole=WHOLE)
def test_another_structure_is_checked_too(part: GraphPart) -> None:
    """A branch that only evaluation takes; a call that was refused is refused again."""
    model, given = ug.distribute(_net(lambda net, x: x if net.training else _centred(x)), part), _rows(part)
    model(*given)
    for _ in range(2):
        with pytest.raises(SpecError, match="not exact"):
            model.eval()(*given)


def _bundle(part: GraphPart) -> tuple[Any, ...]:
    """Return PyG's `Data`, a dict with a list of sparse features, some of the edges, and a number."""
    x, edges = _rows(part)
    return Data(x=x, edge_index=edges), {"of nodes": [x.to_sparse()]}, edges[:, ::2], part.num_nodes


def _masked(_: Any, rows: Any, x: torch.Tensor, edges: torch.Tensor, mask: torch.Tensor) -> Any:
    return rows(x, edges)[mask]


def _in_16_bits(net: Any, rows: Any, x: torch.Tensor, edges: torch.Tensor) -> Any:
    return rows(net.lin(x.to(net.lin.weight.dtype)).relu(), edges).float()


def _bundled(net: Any, rows: Any, data: Data, sides: Any, edges: torch.Tensor, count: int) -> Any:
    return (rows(data.x, data.edge_index) + net.conv(sides["of nodes"][0].to_dense(), edges)) / count


#: A form, what it is given, and the model's type.
FORMS: dict[str, tuple[Callable[..., Any], Callable[[GraphPart], tuple[Any, ...]], torch.dtype]] = {
    "a mask": (_masked, lambda part: _rows(part, part.train_mask), torch.float32),
    "bfloat16": (_in_16_bits, _rows, torch.bfloat16),
    "float16": (_in_16_bits, _rows, torch.float16),
    "anything made of tensors": (_bundled, _bundle, torch.float32),
}


@pytest.mark.parametrize("name", FORMS)
@each_part(PARTS, whole=WHOLE)
def test_the_call_may_have_any_form(part: GraphPart, name: str) -> None:
    """Right rows go through, a rank's mean, number and wrong slopes not; rounding to 16 bits is no difference."""
    form, given, dtype = FORMS[name]
    ug.check(_form(form, lambda net, x: net.lin(x)).to(dtype), part, *given(part))
    wrongs: list[tuple[Any, Any]] = [(lambda _, x: _centred(x), given(part))]
    if name == "a mask":
        wrongs.append((lambda _, x: _detached(x), given(part)))
    if given is _bundle:
        wrongs.append((lambda _, x: x, (*given(part)[:-1], part.num_owned)))
    for then, arguments in wrongs:
        with pytest.raises(SpecError, match="not exact"):
            ug.check(_form(form, then).to(dtype), part, *arguments)


@each_part(PARTS, whole=WHOLE)
def test_a_model_may_hold_the_part(part: GraphPart) -> None:
    """And its tensors: in the check these are the small part's. The rounding of float32 is no difference."""

    def forward(net: Any, x: torch.Tensor) -> Any:
        rows = ug.halo(net.norm(net.lin(x)), net.part)[net.edges[0]]
        out = x.new_zeros(len(x), WIDTH).index_add(0, net.edges[1], rows)
        return out - ug.sum_ranks(out.sum(0), net.part) / net.part.num_nodes

    holding: Any = Net(forward, lin=torch.nn.Linear(WIDTH, WIDTH), norm=ug.BatchNorm(WIDTH, part))
    holding.part, holding.edges = part, part.edge_index
    ug.check(holding, part, part.x)
    for then in (lambda _, x: x.float().softmax(1).double(), lambda net, x: net.lin(x).float()):
        ug.check(_net(then), part, *_rows(part))


@pytest.mark.parametrize("odd", range(PARTS))
def test_what_one_rank_refuses_all_ranks_refuse(odd: int) -> None:
    """Each checks rows like its own; none goes on alone, and then waits for the others."""
    model = _net(lambda _, x: _centred(x) if bool((x.abs() > 20).any()) else x)

    def work(part: GraphPart) -> str:
        distributed, rows = ug.distribute(copy.deepcopy(model), part), part.x.float()
        rows[0] += 1000 * (part.rank == odd)
        with pytest.raises(SpecError, match="Net is not exact") as raised:
            distributed(rows, part.edge_index)
        return str(raised.value)

    assert len(set(on_parts(WHOLE, PARTS, work))) == 1


SMALL = make_whole(num_nodes=60)
Change = Callable[[torch.Tensor], torch.Tensor]
OWN: dict[str, Change] = {
    "mean": lambda x: x - x.mean(0),
    "mean and deviation": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-6),
    "smallest and largest": lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0)),
    "norm": lambda x: x / x.norm(),
}
OF_ROWS: dict[str, Change] = {
    "nothing": lambda x: x,
    "normalize": functional.normalize,
    "layer norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "dropout": functional.dropout,
    "other rows": torch.randn_like,
}
#: Rows with two flags on rank 0, with one on rank 1: what is made of each row alone is the same for all rows of a rank.
FLAGS = np.eye(4, dtype=np.float32)[np.arange(60) % 3] + np.where(np.arange(60) % 2 == 0, 1, 0)[:, None] * np.eye(4)[3]


@pytest.mark.parametrize("name", [*OWN, *OF_ROWS])
def test_features_that_are_normalised_by_own_rows_are_refused(name: str) -> None:
    """On every rank; not what is made of each row alone, of numbers, flags and shares, nor another model's input."""
    change, inputs = (OWN | OF_ROWS)[name], [SMALL.graph.features]
    inputs += [] if name in OWN else [FLAGS, FLAGS / FLAGS.sum(1, keepdims=True)]

    def work(part: GraphPart) -> str:
        try:
            refuse_own_statistics([part.x, change(part.x), None], part)
        except SpecError as error:
            return str(error)
        return ""

    for x in inputs:
        features: NDArray[Any] = np.asarray(x, np.float32)
        told = on_parts(replace(SMALL, graph=replace(SMALL.graph, features=features)), 2, work, np.arange(60) % 2)
        assert ["a rank's own rows" in one for one in told] == [name in OWN] * 2
        assert name in OWN or told == ["", ""]


Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "sum": lambda out, y, w: functional.cross_entropy(out, y, w, reduction="sum"),
    "none": lambda out, y, w: functional.cross_entropy(out, y, w, reduction="none"),
    "smooth": lambda out, y, w: functional.cross_entropy(out, y, w, reduction="sum", label_smoothing=0.1),
    "nll": lambda out, y, w: functional.nll_loss(out.log_softmax(1), y, w, reduction="sum"),
    "labels": lambda out, y, w: functional.binary_cross_entropy_with_logits(
        out, functional.one_hot(y, 3).to(out), pos_weight=w, reduction="sum"),
    "two classes": lambda out, y, w: functional.binary_cross_entropy_with_logits(
        out[:, 1], (y == 1).to(out), pos_weight=w[1], reduction="sum"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@each_part(2, whole=SMALL, owner=np.arange(60) // 45)
def test_weights_of_the_classes_must_be_of_the_whole_graph(part: GraphPart, name: str) -> None:
    """A rank's own counts are refused, also where it has no node of a class; the sums of all ranks' are not."""
    y, out = part.y[part.train_mask], part.x[part.train_mask, :3].requires_grad_()
    counts = torch.bincount(y, minlength=3)
    own, of_all = 1 / (1.0 + counts), 1 / (1.0 + ug.sum_ranks(counts, part))
    for weights in (own, own.index_fill(0, torch.tensor(1), torch.inf if part.rank else 1.0)):
        with pytest.raises(SpecError, match="weights of the classes differ between the ranks"):
            ug.mean(LOSSES[name](out, y, weights.double()), part.num_train, part)
    (gradient,) = torch.autograd.grad(ug.mean(LOSSES[name](out, y, of_all.double()), part.num_train, part), out)
    assert gradient.any()


@each_part(2, whole=SMALL, owner=np.arange(60) // 45)
def test_a_count_of_own_nodes_is_refused(part: GraphPart) -> None:
    """Of a loss and of a metric; weights of nodes are each rank's own, though they have the classes' name."""
    for losses in (part.x[:, 0], part.y == 0):
        with pytest.raises(SpecError, match=rf"count differs between the ranks, here {part.num_owned}"):
            ug.mean(losses, part.num_owned, part)
    assert 0 < ug.mean(part.y == 0, part.num_nodes, part) < 1
    out, weights = part.x[:, 1].clone().requires_grad_(), part.x[:, 0].abs()
    losses = functional.binary_cross_entropy_with_logits(out, (part.y == 0).to(out), weights, reduction="sum")
    assert ug.mean(losses, part.num_nodes, part) > 0
