"""Classes of a user's own under `distribute`: each call in them is exact on parts, or refused in one line."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric import utils
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCNConv, LabelPropagation, MessagePassing
from torch_geometric.utils import degree
from typing_extensions import override

from models.graph.layers_of_pyg import Case
from models.graph.test_torch_layers import PARTS, WHOLE, check_exact
from models.graph.torch_parts import on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart

WIDTH = 8
#: The second of three parts has no node.
WITHOUT_NODES = np.where(np.arange(40) < 20, 0, 2)
Make = Callable[[], torch.nn.Module]


@pytest.fixture(autouse=True)
def _float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("owner", [None, WITHOUT_NODES], ids=["", "a part without nodes"])
@pytest.mark.parametrize("normalization", [None, "sym", "rw"])
def test_chebconv_takes_the_largest_number_of_all_ranks(normalization: str | None, owner: Any) -> None:
    """Without `lambda_max` it scales by the largest number in the Laplacian."""
    case = Case(
        lambda: gnn.ChebConv(WIDTH, 4, K=3, normalization=normalization),
        lambda layer, x, g: layer(x, g.edge_index, g.edge_weight),
    )
    check_exact(case, owner)


class _Weighted(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """Sums its neighbours with weights of its own."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Weigh each edge, and sum."""
        out: torch.Tensor = self.propagate(edge_index, x=x, weight=self.weigh(edge_index, x))
        return out

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Weigh the sources."""
        return x_j * weight[:, None]

    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        """Weigh by the number of edges out of the source."""
        return 1 / degree(edge_index[0], x.size(0))[edge_index[0]]


class _Static(_Weighted):
    @staticmethod
    @override
    def weigh(edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return 1 / degree(edge_index[0], x.size(0))[edge_index[0]]


class _OfClass(_Weighted):
    @classmethod
    @override
    def weigh(cls, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return 1 / degree(edge_index[0], x.size(0))[edge_index[0]]


class _Decorated(_Weighted):
    @override
    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return 1 / degree(edge_index[0], x.size(0))[edge_index[0]]


class _Stacked(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        """Give degrees in a list and by name."""
        both = torch.stack([degree(end, x.size(0)) for end in edge_index], 1).sum(1)
        twice = torch.mul(torch.tensor(2.0), other=degree(edge_index[0], x.size(0)))
        return both[edge_index[1]] + twice[edge_index[0]]


def _closed() -> _Weighted:
    from torch_geometric.utils import degree as count

    class Closed(_Weighted):
        @override
        def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
            return 1 / count(edge_index[0], x.size(0))[edge_index[0]]

    return Closed()


class _OfDegrees(_Weighted):
    """Divides by a number of all degrees."""

    def __init__(self, number: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.number = number

    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        degrees = 1 + degree(edge_index[0], x.size(0))
        return (degrees / self.number(degrees))[edge_index[0]]


def test_a_mean_of_degrees_is_exact_as_the_refusal_says() -> None:
    """Also by `ug.torch.mean`; the larger of two numbers is of each node."""

    def work(part: GraphPart) -> list[float]:
        def both(degrees: torch.Tensor) -> torch.Tensor:
            found.extend([ug.sum_ranks(degrees[:, None].sum(0), part) / part.num_nodes, ug.mean(degrees, 40, part)])
            return torch.max(degrees, torch.tensor(2.0))

        found: list[torch.Tensor] = []
        distribute(_OfDegrees(both), part)(part.x, part.edge_index)
        return [float(number) for number in found]

    assert on_parts(WHOLE, PARTS, work) == [[1 + 140 / 40] * 2] * PARTS


class _Attention(MessagePassing):  # type: ignore[misc]
    """Attends with a softmax as PyG's own layers do, without types."""

    def __init__(self) -> None:
        super().__init__(node_dim=0)
        self.score = torch.nn.Linear(2 * WIDTH, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """Sum the neighbours by their attention."""
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j, index, ptr, size_i) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """Weigh the sources."""
        return x_j * utils.softmax(self.score(torch.cat([x_i, x_j], 1)), index, ptr, size_i)


class _LabelPropagation(torch.nn.Module):
    """PyG's, whose forward is decorated with `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = LabelPropagation(2, 0.9)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        spread: torch.Tensor = self.spread(x, edge_index)
        return x * spread


def test_a_message_without_types_is_exact() -> None:
    """Also where PyG knows the type of an argument (`ptr`); `size_i` is the number of targets."""
    check_exact(Case(_Attention))


def _share(index: torch.Tensor, num_nodes: int) -> Any:
    return 1 / degree(index, num_nodes)[index]


def _without_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate as one that does not use functools.wraps."""

    def call(*args: Any) -> Any:
        return function(*args)

    return call


class _Forward(torch.nn.Module):
    """Calls a function with its rows."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.function = function

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class _DegreeByModule(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return 1 / utils.degree(edge_index[0], x.size(0))[edge_index[0]]


class _DegreeByHelper(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return _share(edge_index[0], x.size(0))


class _DegreeByDecorator(_Weighted):
    @override
    @_without_name
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return 1 / degree(edge_index[0], x.size(0))[edge_index[0]]


class _DegreeByParent(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return super().weigh(edge_index, x) * 2


FACTOR = 1.0


class _Annealed(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return FACTOR / degree(edge_index[0], x.size(0))[edge_index[0]]


def test_a_global_name_may_change_after_distribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A temperature, say, which the script sets in each epoch."""

    def work(part: GraphPart) -> list[torch.Tensor]:
        layer = distribute(_Annealed(), part)
        before = layer(part.x, part.edge_index)
        monkeypatch.setitem(globals(), "FACTOR", 2.0)
        return [before, layer(part.x, part.edge_index)]

    ((before, after),) = on_parts(WHOLE, 1, work)
    torch.testing.assert_close(after, 2 * before)


class _OfEdges(_Weighted):
    """Weighs each edge in `edge_update`, which asks for the nodes' own rows too."""

    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        return self.edge_updater(edge_index, x=x)

    def edge_update(self, x_j: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Compare the source's row with the target's."""
        return (x_j * x[index]).sum(1)


class _DegreeInUpdate(_Weighted):
    def update(self, aggregated: torch.Tensor, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Add the node's own row by the number of edges out of it."""
        share: torch.Tensor = x / (1 + degree(edge_index[0], x.size(0)))[:, None]
        return aggregated + share


def test_a_step_may_ask_for_own_rows_and_degrees() -> None:
    """The exact degree took the place of the step that gives a node's own rows."""
    check_exact(Case(_DegreeInUpdate))


def test_edge_update_may_ask_for_own_rows() -> None:
    """As `update` may."""
    check_exact(Case(_OfEdges))


class _OfGCN(GCNConv):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Call the parent's forward."""
        return torch.relu(super().forward(x, edge_index))


class _NumberOfSources(_Weighted):
    @override
    def message(self, x_j: torch.Tensor, size_j: int) -> torch.Tensor:  # type: ignore[override]
        """Divide by the number of nodes."""
        return x_j / size_j


def test_the_number_of_sources_is_refused_by_its_numbers() -> None:
    """It is this rank's."""

    def work(part: GraphPart) -> None:
        with pytest.raises(SpecError, match="is not exact on parts of a graph"):
            ug.check(_NumberOfSources(), part, part.x, part.edge_index)

    on_parts(WHOLE, 1, work)


def test_a_scale_of_training_nodes_is_refused() -> None:
    """It is a mean over this rank's."""
    part: Any = None
    with pytest.raises(SpecError, match="take autoscale=False"):
        distribute(gnn.CorrectAndSmooth(2, 0.5, 2, 0.5), part)


@pytest.mark.parametrize(
    "make",
    [
        *(_Weighted, _Static, _OfClass, _Decorated, _Stacked, _closed, _LabelPropagation),
        *(_DegreeByModule, _DegreeByHelper, _DegreeByDecorator, _DegreeByParent, lambda: _OfGCN(WIDTH, WIDTH)),
    ],
)
def test_degrees_are_exact(make: Make) -> None:
    """In every kind of method, by a helper and by `super()`, and in every operation of torch on them."""
    check_exact(Case(make))


class _Named(_Forward):
    """Has attributes with the names of refused functions."""

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.degree = self.global_mean_pool = torch.nn.functional.relu(gnn.Linear(WIDTH, WIDTH)(x))
        return self.degree * 0 + x.sub(self.global_mean_pool * 0)


def test_an_attribute_is_not_a_function_of_pyg() -> None:
    """Names are looked up where the code looks them up."""
    check_exact(Case(_Named, lambda layer, x, _: layer(x)))


class _Relations(_Forward):
    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = degree(torch.zeros(5, dtype=torch.int64), num_nodes=3)
        return found


class _RelationsByLargest(_Forward):
    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = degree(torch.zeros(5, dtype=torch.int64))
        return found


class _Explained(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.SAGEConv(WIDTH, 3)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.conv(x, edge_index)
        return rows


def _explain(model: torch.nn.Module, part: GraphPart) -> None:
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(
        model, GNNExplainer(epochs=1), explanation_type="model", edge_mask_type="object", model_config=config
    )
    explainer(part.x, part.edge_index)


@pytest.mark.parametrize(
    ("make", "call", "words"),
    [
        (_Relations, lambda m, p: m(p.x), r"degree: num_nodes=3: expected x.size\(0\)"),
        (_RelationsByLargest, lambda m, p: m(p.x), "degree: num_nodes is not given"),
        (
            lambda: gnn.models.RECT_L(8, 4),
            lambda m, p: m.get_semantic_labels(p.x, p.y, p.train_mask),
            r"RECT_L.get_semantic_labels: it takes means over this rank's nodes",
        ),
        (
            gnn.models.InnerProductDecoder,
            lambda m, p: m.forward_all(p.x),
            r"InnerProductDecoder.forward_all: it is about pairs of this rank's nodes",
        ),
        (
            lambda: gnn.models.SignedGCN(8, 8, 2),
            lambda m, p: m.loss(p.x, p.edge_index, p.edge_index),
            r"SignedGCN.loss: it is about this rank's nodes",
        ),
        *(
            (
                partial(_OfDegrees, number),
                lambda m, p: m(p.x, p.edge_index),
                rf"degree\(...\).{name}\(\) is of this rank's",
            )
            for name, number in (
                ("max", torch.max),
                ("mean", lambda degrees: degrees.log().mean(0)),
                ("std", lambda degrees: degrees.std(dim=0)),
                ("softmax", lambda degrees: degrees.softmax(0)),
                ("normalize", partial(torch.nn.functional.normalize, dim=0)),
                ("linalg_norm", torch.linalg.norm),
            )
        ),
        (_Explained, _explain, r"conv \(SAGEConv\): explain=True: load the state into a model"),
        (
            lambda: gnn.GAE(gnn.GCN(8, 8, 2)),
            lambda m, p: m.recon_loss(m.encode(p.x, p.edge_index), p.edge_index),
            r"GAE.recon_loss: it is about this rank's nodes and edges",
        ),
        (lambda: gnn.VGAE(gnn.GCN(8, 8, 2)), lambda m, _: m.kl_loss(), r"VGAE.kl_loss: it is about"),
    ],
)
def test_a_call_over_all_nodes_is_refused(make: Make, call: Callable[..., Any], words: str) -> None:
    """By the shapes it is given, on every rank."""

    def work(part: GraphPart) -> None:
        model = distribute(make(), part)
        with pytest.raises(SpecError, match=words):
            call(model, part)

    on_parts(WHOLE, PARTS, work)


class _OfEachNode(torch.nn.Module):
    """Attends over a sequence for each node, over learned rows, and weighs by learned shares."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.shares, self.softmax = torch.nn.Parameter(torch.randn(2)), torch.nn.Softmax(0)
        self.rows = torch.nn.Parameter(torch.randn(3, WIDTH))
        self.of_row = torch.nn.Softmax(1)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pair = torch.stack([x, x.tanh()], 1)
        one, _ = self.attention(pair, pair, pair)
        other, _ = self.attention(x, self.rows, self.rows)
        share = self.softmax(self.shares)
        out: torch.Tensor = share[0] * one.sum(1) + share[1] * self.of_row(other)
        return out


def test_attention_of_each_node_by_itself_is_exact() -> None:
    """The same modules, where no sum is over nodes."""
    check_exact(Case(_OfEachNode, lambda layer, x, _: layer(x)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_sequences_of_each_node_are_exact() -> None:
    """In evaluation torch makes nested tensors of them."""

    def encode(graph: Any, model: torch.nn.Module) -> Any:
        rows = torch.stack([graph.x, graph.x.tanh(), graph.x.sin()], 1)
        padding = torch.zeros(rows.shape[:2], dtype=torch.bool)
        padding[:, 2] = graph.x[:, 0] > 0
        with torch.no_grad():
            return model(rows, src_key_padding_mask=padding)[:, :2]

    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    found = on_parts(
        WHOLE, PARTS, lambda part: ug.gather(encode(part, distribute(copy.deepcopy(model), part)), part)
    )  # fmt: skip
    torch.testing.assert_close(found[0], encode(WHOLE, model), rtol=0, atol=1e-10)


def test_correct_and_smooth_without_autoscale_is_exact() -> None:
    """With and without edge weights."""
    scores = torch.randn(40, 3).softmax(1)

    def run(graph: Any, rows: torch.Tensor, model: Any, weight: Any) -> Any:
        given = graph.y[graph.train_mask], graph.train_mask, graph.edge_index, weight
        return model.smooth(model.correct(rows, *given), *given)

    for use in (lambda graph: graph.edge_weight, lambda _: None):

        def work(part: GraphPart, use: Callable[[Any], Any] = use) -> torch.Tensor | None:
            model = distribute(gnn.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False), part)
            return ug.gather(run(part, scores[part.owned], model, use(part)), part)

        alone = run(WHOLE, scores, gnn.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False), use(WHOLE))
        torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], alone, rtol=0, atol=1e-10)


def test_pairs_of_rows_with_their_halo_are_exact() -> None:
    """As the refusal of a loss of link prediction says."""

    def work(part: GraphPart) -> float:
        model: Any = distribute(gnn.GAE(torch.nn.Identity()), part)
        losses = -model.decode(ug.halo(model.encode(part.x), part), part.edge_index).log()
        return float(ug.mean(losses, WHOLE.edge_index.shape[1], part))

    alone = -gnn.GAE(torch.nn.Identity()).decode(WHOLE.x, WHOLE.edge_index).log()
    assert on_parts(WHOLE, PARTS, work) == pytest.approx([float(alone.mean())] * PARTS, abs=1e-12)
