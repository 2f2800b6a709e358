"""The check by numbers: a model that is not exact on parts is refused before its first forward."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_geometric import nn
from torch_geometric.data import Data
from typing_extensions import override

from models.graph.torch_parts import each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.part import GraphPart

WIDTH, PARTS = 8, 2
WHOLE = make_whole(60, 300, WIDTH)


class Net(torch.nn.Module):
    """A layer of PyG, and what *then* makes of its rows.

    Args:
        then: Called with this module and the rows.
        more: Further modules of this one.
    """

    def __init__(self, then: Callable[[Any, torch.Tensor], Any], **more: torch.nn.Module) -> None:
        super().__init__()
        self.conv, self.then = nn.GCNConv(WIDTH, WIDTH), then
        self.lin = torch.nn.Linear(WIDTH, WIDTH)
        for name, module in more.items():
            self.add_module(name, module)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """Return what *then* returns."""
        return self.then(self, self.conv(x, edge_index))


class Normalised(torch.nn.InstanceNorm1d):
    """A class that is derived from one that is refused by its name."""


def _centred(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(0)


class _Detached(torch.autograd.Function):
    """Its outputs are exact; its gradients are divided by the number of rows."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows.clone()

    @staticmethod
    @override
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / len(gradient)


WRONG: dict[str, Callable[[], torch.nn.Module]] = {
    "F.batch_norm": lambda: Net(lambda _, x: functional.batch_norm(x, None, None, training=True)),
    "F.normalize": lambda: Net(lambda _, x: functional.normalize(x, dim=0)),
    "attention": lambda: Net(lambda net, x: (net.lin(x) @ x.T).softmax(1) @ x),
    "a helper": lambda: Net(lambda _, x: _centred(x)),
    "a subclass": lambda: Net(lambda net, x: net.norm(x.T[None])[0].T, norm=Normalised(WIDTH)),
    "a loss that is a mean": lambda: Net(lambda _, x: (x, x.square().mean())),
    "gradients": lambda: Net(lambda _, x: _Detached.apply(x)),  # type: ignore[no-untyped-call]
}  # fmt: skip
RIGHT: dict[str, Callable[[], torch.nn.Module]] = {
    "rows by themselves": lambda: Net(lambda net, x: functional.layer_norm(net.lin(x), (WIDTH,))),
    "dropout": lambda: Net(lambda _, x: functional.dropout(x, 0.5)),
    "a norm": lambda: Net(lambda net, x: net.norm(x), norm=torch.nn.BatchNorm1d(WIDTH)),
    "a sum over nodes": lambda: Net(lambda _, x: (x, x.square().sum())),
    "torch's default type": lambda: Net(lambda _, x: x @ torch.eye(WIDTH)),
    "several outputs": lambda: Net(lambda _, x: {"rows": x, "parts": [x[:, :2], x.argmax(1)]}),
}  # fmt: skip
UNCHECKED: dict[str, Callable[[], torch.nn.Module]] = {
    "random numbers": lambda: Net(lambda _, x: x + torch.randn_like(x)),
    "numbers of numpy": lambda: Net(lambda _, x: x + float(np.random.rand())),  # noqa: NPY002  (as scripts do)
    "no tensor": lambda: Net(lambda _, x: len(x)),
    "an error": lambda: Net(lambda _, x: x if len(x) in {20, 30} else x[99]),
}  # fmt: skip


def _outcomes(make: Callable[[], torch.nn.Module], **options: bool) -> list[str]:
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
    for outcome in _outcomes(WRONG[name]):
        assert "Net is not exact on parts of a graph" in outcome
    assert _outcomes(WRONG[name], check=False) == [""] * PARTS


def test_the_first_module_whose_numbers_differ_is_named() -> None:
    """And the forward of the model itself, where no module in it differs."""
    assert "norm (Normalised)" in _outcomes(WRONG["a subclass"])[0]
    assert "the forward of Net:" in _outcomes(WRONG["F.batch_norm"])[0]
    assert "the forward of Net, before lin (Linear)" in _outcomes(lambda: Net(lambda net, x: net.lin(_centred(x))))[0]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_exact_goes_through(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It has been checked: nothing is said."""
    assert _outcomes(RIGHT[name]) == [""] * PARTS
    assert not caplog.records


@pytest.mark.parametrize("name", UNCHECKED)
def test_what_cannot_be_checked_goes_on_and_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once, by rank 0."""
    assert _outcomes(UNCHECKED[name]) == [""] * PARTS
    assert [record.message for record in caplog.records if "is not checked on parts" in record.message]


@each_part(1, whole=WHOLE)
def test_a_check_leaves_no_trace(part: GraphPart) -> None:
    """In parameters, buffers, gradients, generators, and in what a hook of the script keeps."""
    model = ug.distribute(Net(lambda net, x: net.norm(x), norm=torch.nn.BatchNorm1d(WIDTH)).double(), part)
    seen: list[Any] = []
    model.get_submodule("lin").register_forward_hook(lambda *given: seen.append(given))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    ug.check(model, part, part.x, part.edge_index)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not seen


def _largest(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
    mine = functional.one_hot(torch.tensor(part.rank), part.world_size)[:, None] * x.abs().amax(0)
    return x / ug.sum_ranks(mine, part).amax(0)


def _variance(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
    """Return a loss that each rank has, divided by the number of ranks."""
    mean = ug.sum_ranks(x.sum(0), part) / part.num_nodes
    return ug.mean((ug.sum_ranks((x - mean).square().sum(0), part) / part.num_nodes).sum(), part.world_size, part)


def _compared(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
    rows = x.tanh()
    ug.gather(rows, part)
    return rows @ ug.fetch(rows, np.array([0, 3, 0], ">i8"), part).T


#: Functions of rows and a part, and what is said of those that are not exact.
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], str]] = {
    "the mean of all ranks": (lambda x, part: x - ug.sum_ranks(x.sum(0), part) / part.num_nodes, ""),
    "the largest of all ranks, by a sum": (_largest, ""),
    "a loss of all ranks": (_variance, ""),
    "rows of any nodes": (_compared, ""),
    "rows with halo": (lambda x, part: ug.halo(x.tanh(), part), ""),
    "a rank's first row": (lambda x, part: x - ug.fetch(x, part.owned[:1], part), "not exact"),
    "a rank's mean": (lambda x, _: _centred(x), "not exact"),
    "a millionth, in float64": (lambda x, _: x + 1e-6 * x.mean(0), "not exact"),
    # ranks that would wait for each other: a part leaves an exchange out, makes one more, or fails alone
    "an exchange less": (lambda x, part: ug.halo(x, part)[: len(x)] if part.edge_index.numel() else x, "one process"),
    "an exchange more": (
        lambda x, part: x + 0 * ug.sum_ranks(x.sum(0), part) if part.num_halo else x, "one process"
    ),
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


class _Encoder(torch.nn.Module):
    """It has no forward; a script calls its method, or its module."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.net, self.then = Net(lambda _, x: then(x)), then

    def encode(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        return self.then(self.net.conv(x, edge_index))


#: How a script enters a model in other ways than by its forward, and what is then refused.
ENTRIES: dict[str, tuple[Callable[[Any], torch.nn.Module], Callable[[Any], Any]]] = {
    "_Encoder.encode": (_Encoder, lambda model: model.encode),
    "_Encoder.net": (_Encoder, lambda model: model.net),
    "GAE.encode": (lambda then: nn.GAE(Net(lambda _, x: then(x))), lambda model: model.encode),
    "ModuleDict.one": (lambda then: torch.nn.ModuleDict({"one": _Encoder(then).net}), lambda model: model["one"]),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_each_method_that_is_given_the_edges_is_checked(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not the model's forward alone; what is exact goes through, and nothing is said of it."""
    make, entry = ENTRIES[name]

    def work(part: GraphPart) -> None:
        given = part.x.float(), part.edge_index
        wrong = ug.distribute(make(_centred), part)
        for _ in range(2):
            with pytest.raises(SpecError, match=f"{name} is not exact on parts"):
                entry(wrong)(*given)
        exact = ug.distribute(make(torch.tanh), part)
        entry(exact)(*given)
        if "encode" in name:
            ug.check(entry(exact), part, *given)

    on_parts(WHOLE, PARTS, work)
    assert not caplog.records


def test_a_method_that_trains_is_not_tried(caplog: pytest.LogCaptureFixture) -> None:
    """It would train a copy too, print, and write files; the forward that it calls is checked."""
    epochs = []

    class Trained(Net):
        def fit(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                out: torch.Tensor = self(x, edge_index)
                out.sum().backward()  # type: ignore[no-untyped-call]
                epochs.append(out)
            return out

    def work(part: GraphPart) -> None:
        ug.distribute(Trained(lambda _, x: x), part).fit(part.x.float(), part.edge_index)  # type: ignore[operator]
        with pytest.raises(SpecError, match="Trained is not exact"):
            ug.distribute(Trained(lambda _, x: _centred(x)), part).fit(part.x.float(), part.edge_index)  # type: ignore[operator]

    on_parts(WHOLE, PARTS, work)
    assert len(epochs) == 3 * PARTS
    assert "Trained.fit is not checked on parts: it calls backward" in caplog.text


@each_part(1, whole=WHOLE)
def test_on_one_rank_there_is_a_warning(part: GraphPart) -> None:
    """The numbers are right there, and will not be on two."""
    model = ug.distribute(WRONG["F.normalize"](), part)
    with pytest.warns(UserWarning, match="not exact on parts"):
        model(part.x.float(), part.edge_index)
    model(part.x.float(), part.edge_index)


@each_part(PARTS, whole=WHOLE)
def test_another_structure_is_checked_too(part: GraphPart) -> None:
    """A branch that only evaluation takes; a call that was refused is refused again."""
    model = ug.distribute(Net(lambda net, x: x if net.training else _centred(x)), part)
    rows = part.x.float()
    model(rows, part.edge_index)
    for _ in range(2):
        with pytest.raises(SpecError, match="not exact"):
            model.eval()(rows, part.edge_index)


class Selecting(Net):
    """It returns some nodes' rows."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, mask: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, edge_index)[mask]


class Short(Net):
    """It computes with 16 bits."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return super().forward(self.lin(x.to(self.lin.weight.dtype)).relu(), edge_index).float()


class Bundled(Net):
    """It takes PyG's `Data`, a dict with a list of sparse features, some of the edges, and a number."""

    @override
    def forward(self, data: Any, sides: Any, edges: Any, count: int) -> Any:  # type: ignore[override]
        rows = super().forward(data.x, data.edge_index) + self.conv(sides["of nodes"][0].to_dense(), edges)
        return rows / count


def _bundle(part: GraphPart, count: int) -> tuple[Any, ...]:
    rows = part.x.float()
    return Data(x=rows, edge_index=part.edge_index), {"of nodes": [rows.to_sparse()]}, part.edge_index[:, ::2], count


def _rows(part: GraphPart, *more: Any) -> tuple[Any, ...]:
    return part.x.float(), part.edge_index, *more


#: What makes a model of *then*, what it is called with, and the number of ranks.
FORMS: dict[str, tuple[Callable[[Any], torch.nn.Module], Callable[[GraphPart], tuple[Any, ...]], int]] = {
    "a mask": (Selecting, lambda part: _rows(part, part.train_mask), 1),
    "all nodes but one": (Selecting, lambda part: _rows(part, part.owned > part.owned.min()), 1),
    "bfloat16": (lambda then: Short(then).bfloat16(), _rows, 1),
    "float16": (lambda then: Short(then).half(), _rows, 1),
    "anything made of tensors": (Bundled, lambda part: _bundle(part, part.num_nodes), PARTS),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_call_may_have_any_form(name: str) -> None:
    """Right rows go through, a rank's mean and wrong slopes not; the rounding of 16 bits is no difference."""
    make, given, ranks = FORMS[name]

    def work(part: GraphPart) -> None:
        torch.manual_seed(0)
        ug.check(make(lambda net, x: net.lin(x)), part, *given(part))
        wrongs = [(make, lambda _, x: _centred(x), given(part))]
        if make is Selecting:
            wrongs.append((make, lambda _, x: _Detached.apply(x), given(part)))  # type: ignore[no-untyped-call]
        if make is Bundled:
            wrongs.append((make, lambda _, x: x, _bundle(part, part.num_owned)))
        for wrong, then, arguments in wrongs:
            with pytest.raises(SpecError, match="not exact"):
                ug.check(wrong(then), part, *arguments)

    on_parts(WHOLE, ranks, work)


@each_part(PARTS, whole=WHOLE)
def test_a_model_may_hold_the_part(part: GraphPart) -> None:
    """And its tensors: in the check these are the small part's."""

    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.edges = part, part.edge_index
            self.lin, self.norm = torch.nn.Linear(WIDTH, WIDTH), ug.BatchNorm(WIDTH, part)

        @override
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = ug.halo(self.norm(self.lin(x)), self.part)[self.edges[0]]
            out = x.new_zeros(len(x), WIDTH).index_add(0, self.edges[1], rows)
            return out - ug.sum_ranks(out.sum(0), self.part) / self.part.num_nodes

    ug.check(Holding(), part, part.x)


@each_part(PARTS, whole=WHOLE)
def test_the_rounding_of_float32_is_no_difference(part: GraphPart) -> None:
    """Where a model computes in it on its way."""
    for then in (lambda _, x: x.float().softmax(1).double(), lambda net, x: net.lin(x).float()):
        ug.check(Net(then), part, part.x.float(), part.edge_index)


@pytest.mark.parametrize("odd", range(PARTS))
def test_what_one_rank_refuses_all_ranks_refuse(odd: int) -> None:
    """Each checks rows like its own; none goes on alone, and then waits for the others."""

    class Odd(Net):
        @override
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
            rows = super().forward(x, edge_index)
            return _centred(rows) if bool((x > 100).any()) else rows

    model = Odd(lambda _, x: x)

    def work(part: GraphPart) -> str:
        distributed, rows = ug.distribute(copy.deepcopy(model), part), part.x.float()
        rows[0] += 1000 * (part.rank == odd)
        with pytest.raises(SpecError, match="Odd is not exact") as raised:
            distributed(rows, part.edge_index)
        return str(raised.value)

    assert len(set(on_parts(WHOLE, PARTS, work))) == 1


@each_part(1, whole=WHOLE)
def test_a_large_model_is_not_checked(part: GraphPart) -> None:
    """Each copy would take more than 256 MB."""
    with pytest.raises(ug.NotCheckedError, match="256 MB"):
        ug.check(Net(lambda _, x: x, large=torch.nn.Linear(1 << 13, (1 << 12) + 1)), part, part.x, part.edge_index)
