"""The check by numbers: a model that is not exact on parts is refused before its first forward."""

import copy
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_geometric import nn
from torch_geometric.data import Data
from torch_geometric.utils import dropout_edge
from typing_extensions import override

from models.graph.torch_parts import make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch.rendezvous import group
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph import torch as ug
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks

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


class Doubled(torch.nn.BatchNorm1d):
    """An instance with a forward of its own, as a script may set one."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.forward = self.twice  # type: ignore[method-assign,assignment]

    def twice(self, rows: torch.Tensor) -> torch.Tensor:
        """Return twice the normalised rows."""
        return 2 * torch.nn.BatchNorm1d.forward(self, rows)


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
    "F.layer_norm": lambda: Net(lambda _, x: functional.layer_norm(x, x.shape)),
    "F.scaled_dot_product_attention": lambda: Net(
        lambda _, x: functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)[0]
    ),
    "attention": lambda: Net(lambda net, x: (net.lin(x) @ x.T).softmax(1) @ x),
    "a helper": lambda: Net(lambda _, x: _centred(x)),
    "the largest": lambda: Net(lambda _, x: x / x.amax(0)),
    "all pairs": lambda: Net(lambda _, x: x @ x.T),
    "a subclass": lambda: Net(lambda net, x: net.norm(x.T[None])[0].T, norm=Normalised(WIDTH)),
    "a forward of the instance": lambda: Net(lambda net, x: net.norm(x), norm=Doubled(WIDTH)),
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


def test_a_check_leaves_no_trace() -> None:
    """In parameters, buffers, gradients, generators, and in what a hook of the script keeps."""

    def work(part: GraphPart) -> None:
        model = ug.distribute(Net(lambda net, x: net.norm(x), norm=torch.nn.BatchNorm1d(WIDTH)).double(), part)
        seen: list[Any] = []
        model.get_submodule("lin").register_forward_hook(lambda *given: seen.append(given))
        before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        ug.check(model, part, part.x, part.edge_index)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), state)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not seen

    on_parts(WHOLE, 1, work)


def test_a_function_is_checked_by_itself() -> None:
    """One that calls `ug.torch` with its argument is exact; one that has the part in a variable cannot be checked."""

    def mean_of_all(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        return x - ug.sum_ranks(x.sum(0), part) / part.num_nodes

    def work(part: GraphPart) -> None:
        ug.check(mean_of_all, part, part.x, part)
        with pytest.raises(SpecError, match="_centred is not exact"):
            ug.check(_centred, part, part.x)
        with pytest.raises(ug.NotCheckedError):
            ug.check(lambda x: mean_of_all(x, part), part, part.x)

    on_parts(WHOLE, PARTS, work)


def test_on_one_rank_there_is_a_warning() -> None:
    """The numbers are right there, and will not be on two."""

    def work(part: GraphPart) -> None:
        model = ug.distribute(WRONG["F.normalize"](), part)
        with pytest.warns(UserWarning, match="not exact on parts"):
            model(part.x.float(), part.edge_index)
        model(part.x.float(), part.edge_index)

    on_parts(WHOLE, 1, work)


def test_another_structure_is_checked_too() -> None:
    """A branch that only evaluation takes, or only a further argument."""

    def work(part: GraphPart) -> None:
        model = ug.distribute(Net(lambda net, x: x if net.training else _centred(x)), part)
        rows = part.x.float()
        model(rows, part.edge_index)
        with pytest.raises(SpecError, match="not exact"):
            model.eval()(rows, part.edge_index)

    on_parts(WHOLE, PARTS, work)


class Selecting(Net):
    """It returns some nodes' rows."""

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, mask: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, edge_index)[mask]


def _is_right(part: GraphPart, model: torch.nn.Module, *given: Any) -> bool:
    """Return whether a model goes through, and one with a mean of its rows or with wrong gradients does not."""
    ug.check(model, part, *given)
    for wrong in (_centred, _Detached.apply):
        model.then = lambda _, x, wrong=wrong: wrong(x)  # type: ignore[assignment]
        with pytest.raises(SpecError, match="not exact"):
            ug.check(model, part, *given)
    return True


def test_rows_that_a_mask_selects_are_compared() -> None:
    """The mask may select all nodes of a part, but for one; it may be an argument, in `Data`, or an attribute."""

    class Holding(Net):
        def __init__(self, data: Data) -> None:
            super().__init__(lambda _, x: x)
            self.data = data

        @override
        def forward(self) -> Any:  # type: ignore[override]
            return super().forward(self.data.x, self.data.edge_index)[self.data.chosen]

    def work(part: GraphPart) -> None:
        x, edges, many = part.x.float(), part.edge_index, part.owned > part.owned.min()
        assert _is_right(part, Selecting(lambda _, x: x), x, edges, part.train_mask)
        assert _is_right(part, Holding(Data(x=x, edge_index=edges, chosen=many)))

    on_parts(WHOLE, 1, work)


def test_rows_that_a_comparison_selects_are_compared_by_size() -> None:
    """Where the parts have other rows than the whole, nobody knows which, and that is said."""

    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0]

    def work(part: GraphPart) -> None:
        ug.check(positive, part, part.x)
        with pytest.raises(SpecError, match="not exact"):
            ug.check(lambda x: _centred(positive(x)), part, part.x)
        with pytest.raises(ug.NotCheckedError, match="rows"):
            ug.check(lambda x: x[: len(x) // 2], part, part.x)

    on_parts(WHOLE, PARTS, work)


def test_rows_with_halo_may_be_an_output() -> None:
    """The gradient of a halo node's row is its owner's."""

    def work(part: GraphPart) -> None:
        ug.check(lambda x, part: ug.halo(x.tanh(), part), part, part.x, part)

    on_parts(WHOLE, PARTS, work)


def test_what_the_model_holds_is_not_copied() -> None:
    """A large table in a list is the model's own in each run."""
    seen = set()

    class Holding(Net):
        def __init__(self) -> None:
            super().__init__(lambda _, x: x)
            self.tables = [torch.ones(1 << 22)]

        @override
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
            seen.add(self.tables[0].data_ptr())
            return super().forward(x, edge_index)

    def work(part: GraphPart) -> None:
        model = Holding()
        ug.check(model, part, part.x.float(), part.edge_index)
        assert seen == {model.tables[0].data_ptr()}

    on_parts(WHOLE, 1, work)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_a_model_of_16_bits_is_no_difference(kind: torch.dtype) -> None:
    """Its rounding is not; a mean of a rank's rows is one."""

    class Short(Net):
        @override
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
            return super().forward(self.lin(x.to(kind)).relu(), edge_index).float()

    def work(part: GraphPart) -> None:
        for seed in range(2):
            torch.manual_seed(seed)
            ug.check(Short(lambda net, x: net.lin(x)).to(kind), part, part.x.float(), part.edge_index)
            rounding = Net(lambda net, x: functional.softmax(net.lin(x).to(kind), 1).float())
            ug.check(rounding, part, part.x.float(), part.edge_index)
        for wrong in (Short(lambda _, x: _centred(x)).to(kind), Net(lambda _, x: _centred(x.to(kind)))):
            with pytest.raises(SpecError, match="not exact"):
                ug.check(wrong, part, part.x.float(), part.edge_index)

    on_parts(WHOLE, 1, work)


def test_ids_and_numbers_of_numpy_are_taken() -> None:
    """Of any byte order and size, as the call itself takes them."""

    def fetched(x: torch.Tensor, part: GraphPart, scale: Any) -> torch.Tensor:
        return float(scale) * x @ ug.fetch(x, np.array([0, 3, 0], ">i8"), part).T

    def work(part: GraphPart) -> None:
        ug.check(fetched, part, part.x, part, np.longdouble(2))
        with pytest.raises(ug.NotCheckedError, match="called with ndarray"):
            ug.check(fetched, part, part.x, part, np.ones(1, ">f8"))

    on_parts(WHOLE, PARTS, work)


def test_a_check_is_fast() -> None:
    """In processor time, since other programs may run."""
    model = nn.GAT(WIDTH, 64, 3, 7, heads=4, norm="batch", dropout=0.5)

    def work(part: GraphPart) -> float:
        begin = time.process_time()
        ug.check(model, part, part.x.float(), part.edge_index)
        return time.process_time() - begin

    assert min(on_parts(WHOLE, 1, work)[0] for _ in range(3)) < 1


def test_dropped_edges_are_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    """They are drawn by each rank for its own."""

    class Dropping(Net):
        @override
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
            return super().forward(x, dropout_edge(edge_index, 0.3, training=self.training)[0])

    assert _outcomes(lambda: Dropping(lambda _, x: x)) == [""] * PARTS
    assert "random numbers" in caplog.text


def test_the_call_may_be_anything_made_of_tensors() -> None:
    """PyG's `Data`, dicts, lists, sparse features, some of the edges, and numbers of rows."""

    class Bundled(Net):
        @override
        def forward(self, data: Any, sides: Any, edges: Any, *, count: int) -> Any:  # type: ignore[override]
            rows = super().forward(data.x, data.edge_index) + self.conv(sides["of nodes"][0].to_dense(), edges)
            return rows / count

    def work(part: GraphPart) -> None:
        data = Data(x=part.x.float(), edge_index=part.edge_index)
        sides = {"of nodes": [part.x.float().to_sparse()]}
        given = (data, sides, part.edge_index[:, ::2])
        ug.check(Bundled(lambda _, x: x), part, *given, count=part.num_nodes)
        with pytest.raises(SpecError, match="not exact"):
            ug.check(Bundled(lambda _, x: _centred(x)), part, *given, count=part.num_nodes)
        with pytest.raises(SpecError, match="not exact"):
            ug.check(Bundled(lambda _, x: x), part, *given, count=part.num_owned)

    on_parts(WHOLE, PARTS, work)


def test_a_model_may_hold_the_part() -> None:
    """And its tensors: in the check these are the small part's."""

    def work(part: GraphPart) -> None:
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

    on_parts(WHOLE, PARTS, work)


def test_what_ranks_give_each_other_need_not_be_what_one_rank_has() -> None:
    """The largest number of all ranks, by a sum; a loss that each rank has, divided by the number of ranks."""

    def largest(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        mine = torch.nn.functional.one_hot(torch.tensor(part.rank), part.world_size)[:, None] * x.abs().amax(0)
        return x / ug.sum_ranks(mine, part).amax(0)

    def variance(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        mean = ug.sum_ranks(x.sum(0), part) / part.num_nodes
        return ug.mean((ug.sum_ranks((x - mean).square().sum(0), part) / part.num_nodes).sum(), part.world_size, part)

    def work(part: GraphPart) -> None:
        ug.check(largest, part, part.x, part)
        ug.check(variance, part, part.x, part)

    on_parts(WHOLE, PARTS, work)


def test_rows_of_any_nodes_may_be_fetched_and_gathered() -> None:
    """They are compared like the halo's."""

    def compared(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        rows = x.tanh()
        ug.gather(rows, part)
        return rows @ ug.fetch(rows, torch.tensor([0, 3, 0]), part).T

    def of_the_first(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        return x - ug.fetch(x, part.owned[:1], part)

    def chosen(x: torch.Tensor, part: GraphPart) -> list[torch.Tensor]:
        """Return as many rows as a mask may select, by chance."""
        rows = x.tanh()
        return [ug.fetch(rows, torch.arange(count), part) for count in range(10, 30)]

    def work(part: GraphPart) -> None:
        ug.check(compared, part, part.x, part)
        ug.check(chosen, part, part.x, part)
        with pytest.raises(SpecError, match="not exact"):
            ug.check(of_the_first, part, part.x, part)

    on_parts(WHOLE, PARTS, work)


def test_ranks_that_would_wait_for_each_other_are_refused() -> None:
    """A part without edges leaves an exchange out; another part makes one more."""

    def skipping(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        return ug.halo(x, part)[: len(x)] if part.edge_index.numel() else x

    def summing(x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        return x + 0 * ug.sum_ranks(x.sum(0), part) if part.num_halo else x

    def work(part: GraphPart) -> None:
        for function in (skipping, summing):
            with pytest.raises(SpecError, match="which one process"):
                ug.check(function, part, part.x, part)

    on_parts(WHOLE, PARTS, work)


def test_an_error_in_parts_alone_is_a_refusal() -> None:
    """Some part of a graph may have no edge."""

    def largest(x: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        return x * 0 * edge_weight.amax() + x

    def work(part: GraphPart) -> None:
        with pytest.raises(SpecError, match="it raises"):
            ug.check(largest, part, part.x, part.edge_weight)

    on_parts(WHOLE, PARTS, work)


def test_a_difference_of_a_millionth_is_seen() -> None:
    """In float64; where a model computes in float32, its rounding is none."""

    def work(part: GraphPart) -> None:
        with pytest.raises(SpecError, match="not exact"):
            ug.check(lambda x: x + 1e-6 * x.mean(0), part, part.x)
        ug.check(Net(lambda _, x: x.float().softmax(1).double()), part, part.x.float(), part.edge_index)
        ug.check(Net(lambda net, x: net.lin(x).float()), part, part.x.float(), part.edge_index)

    on_parts(WHOLE, PARTS, work)


@pytest.mark.parametrize("name", ["F.normalize", "a norm"])
def test_a_compiled_model_is_checked_by_itself(name: str) -> None:
    """Before or after `distribute`; nothing is compiled for it."""

    def work(part: GraphPart) -> list[str]:
        texts = []
        for model in (
            torch.compile((WRONG | RIGHT)[name]()),
            torch.compile(ug.distribute((WRONG | RIGHT)[name](), part)),
        ):
            try:
                ug.check(model, part, part.x.float(), part.edge_index)
                texts.append("")
            except SpecError as error:
                texts.append(str(error))
        return texts

    texts = on_parts(WHOLE, 1, work)[0]
    assert ["Net is not exact" in text for text in texts] == [name in WRONG] * 2


def test_the_callers_mode_is_that_of_the_check() -> None:
    """Without gradients only outputs are compared; the process's default type stays."""

    def work(part: GraphPart) -> None:
        before = torch.get_default_dtype()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                ug.check(WRONG["gradients"](), part, part.x.float(), part.edge_index)
                with pytest.raises(SpecError, match="not exact"):
                    ug.check(WRONG["F.normalize"](), part, part.x.float(), part.edge_index)
        assert torch.get_default_dtype() == before

    on_parts(WHOLE, 1, work)


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
        distributed = ug.distribute(copy.deepcopy(model), part)
        with pytest.raises(SpecError, match="Odd is not exact") as raised:
            distributed(part.x.float() + 1000 * (part.rank == odd), part.edge_index)
        return str(raised.value)

    assert len(set(on_parts(WHOLE, PARTS, work))) == 1


def test_a_function_that_sums_over_the_ranks_is_checked_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the process is in a group of several ranks, and the simulation has a run on one."""
    monkeypatch.setattr(group, "program_group", lambda: SimpleNamespace(size=3, title="torch.distributed"))
    order = order_nodes(WHOLE.graph, np.zeros(len(WHOLE.x), np.int64), 1)
    part = make_part(next(split_parts(WHOLE.graph, order)), Ranks(0, 1, Alone(), torch.device("cpu")))
    ug.check(lambda x, part: x - ug.sum_ranks(x.sum(0), part) / part.num_nodes, part, part.x, part)


def test_a_large_model_is_not_checked() -> None:
    """Each copy would take more than 256 MB."""

    def work(part: GraphPart) -> None:
        with pytest.raises(ug.NotCheckedError, match="256 MB"):
            ug.check(Net(lambda _, x: x, large=torch.nn.Linear(1 << 13, (1 << 12) + 1)), part, part.x, part.edge_index)

    on_parts(WHOLE, 1, work)


def test_a_call_that_was_refused_is_refused_again() -> None:
    """A notebook's cell that runs twice, or a script that catches the error."""

    def work(part: GraphPart) -> None:
        model = ug.distribute(WRONG["F.normalize"](), part)
        for _ in range(2):
            with pytest.raises(SpecError, match="not exact"):
                model(part.x.float(), part.edge_index)

    on_parts(WHOLE, PARTS, work)


def test_numbers_of_numpy_are_drawn_numbers() -> None:
    """Also where they leave most of the generator's state as it was."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.random.rand(len(x), 1))  # noqa: NPY002  (as scripts do)

    def work(part: GraphPart) -> None:
        with pytest.raises(ug.NotCheckedError, match="random"):
            ug.check(noisy, part, part.x)

    on_parts(WHOLE, 1, work)
