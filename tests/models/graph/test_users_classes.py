"""Classes of a user's own, and PyG's functions that change edges, under `distribute`: exact on parts, or refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric import utils
from torch_geometric.nn import LabelPropagation, MessagePassing
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    dropout_adj,
    dropout_edge,
    mask_feature,
    one_hot,
)
from typing_extensions import override

from models.graph.layers_of_pyg import Case
from models.graph.test_torch_layers import PARTS, WHOLE, WITHOUT_EDGES, check_exact
from models.graph.torch_parts import on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.reductions import sum_ranks

WIDTH = 8
#: The second of three parts has no node.
WITHOUT_NODES = np.where(np.arange(40) < 20, 0, 2)
Make = Callable[[], torch.nn.Module]
pytestmark = pytest.mark.usefixtures("float64")


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


class _Stacked(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        """Give degrees in a list and by name."""
        both = torch.stack([degree(end, x.size(0)) for end in edge_index], 1).sum(1)
        twice = torch.mul(torch.tensor(2.0), other=degree(edge_index[0], x.size(0)))
        return both[edge_index[1]] + twice[edge_index[0]]


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


@pytest.mark.parametrize(
    "make",
    [
        _Stacked,
        _LabelPropagation,
        _DegreeInUpdate,
        _OfEdges,
        _Attention,
    ],
)
def test_a_users_class_is_exact(make: Make) -> None:
    """Degrees and operations on them, a step that asks for own rows, attention without types, torch's `no_grad`."""
    check_exact(Case(make))


class _OfLargest(_Weighted):
    @override
    def weigh(self, edge_index: torch.Tensor, x: torch.Tensor) -> Any:
        degrees = degree(edge_index[0], x.size(0))
        return (degrees / degrees.max())[edge_index[0]]


@pytest.mark.parametrize(
    ("make", "call", "words"),
    [
        (
            lambda: gnn.models.RECT_L(8, 4),
            lambda m, p: m.get_semantic_labels(p.x, p.y, p.train_mask),
            r"RECT_L.get_semantic_labels: it takes means over this rank's nodes",
        ),
        (_OfLargest, lambda m, p: m(p.x, p.edge_index), r"degree\(...\).max\(\) is of this rank's"),
        (
            lambda: gnn.GAE(gnn.GCN(8, 8, 2)),
            lambda m, p: m.recon_loss(m.encode(p.x, p.edge_index), p.edge_index),
            r"GAE.recon_loss: it is about this rank's nodes and edges",
        ),
    ],
)
def test_a_call_over_all_nodes_is_refused(make: Make, call: Callable[..., Any], words: str) -> None:
    """By name, on every rank."""

    def work(part: GraphPart) -> None:
        model = distribute(make(), part)
        with pytest.raises(SpecError, match=words):
            call(model, part)

    on_parts(WHOLE, PARTS, work)


def test_correct_and_smooth_without_autoscale_is_exact() -> None:
    """Its scale is a mean over this rank's training nodes, which is refused."""
    scores = torch.randn(40, 3).softmax(1)

    def run(graph: Any, rows: torch.Tensor, model: Any) -> Any:
        given = graph.y[graph.train_mask], graph.train_mask, graph.edge_index, graph.edge_weight
        return model.smooth(model.correct(rows, *given), *given)

    def work(part: GraphPart) -> torch.Tensor | None:
        with pytest.raises(SpecError, match="take autoscale=False"):
            distribute(gnn.CorrectAndSmooth(2, 0.5, 2, 0.5), part)
        model = distribute(gnn.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False), part)
        return ug.gather(run(part, scores[part.owned], model), part)

    alone = run(WHOLE, scores, gnn.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=False))
    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], alone, rtol=0, atol=1e-10)


class _Sum(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """Changes the edges, and sums the rows of the sources.

    Args:
        change: Returns the edges that it makes of some.
    """

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Sum over the changed edges."""
        out: torch.Tensor = self.propagate(self.change(edge_index)[0], x=x)
        return out


@pytest.mark.parametrize("owner", [None, WITHOUT_EDGES], ids=["", "a part without edges"])
@pytest.mark.parametrize("add", [add_self_loops, add_remaining_self_loops])
def test_loops_are_those_of_the_owned_nodes(add: Callable[[torch.Tensor], Any], owner: Any) -> None:
    """Without num_nodes PyG takes the largest number in the edges, which may be a halo node's, or of no edge."""

    def work(part: GraphPart) -> None:
        loops, edges = torch.arange(part.num_owned).repeat(2, 1), part.edge_index
        if add is add_remaining_self_loops:
            edges = edges[:, edges[0] != edges[1]]
        exact = distribute(_Sum(lambda _: [torch.cat([edges, loops], 1)]), part, check=False)
        expected = exact(part.x, part.edge_index)
        torch.testing.assert_close(distribute(_Sum(add), part)(part.x, part.edge_index), expected)

    on_parts(WHOLE, PARTS, work, owner)


class _Masked(torch.nn.Module):
    @override
    def forward(self, x: torch.Tensor) -> Any:
        return mask_feature(x, 0.5, training=self.training)[1]


def test_masked_features_are_the_same_on_all_ranks() -> None:
    """A masked column is of all nodes."""

    def work(part: GraphPart) -> torch.Tensor:
        model = distribute(_Masked(), part)
        masks: torch.Tensor = torch.cat([model(part.x) for _ in range(8)])
        return masks

    first, *others = on_parts(WHOLE, PARTS, work)
    assert 0 < first.sum() < first.numel()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.filterwarnings("ignore:'dropout_adj' is deprecated")
@pytest.mark.parametrize("drop", [dropout_edge, dropout_adj])
def test_edges_are_dropped_in_training_alone(drop: Callable[..., Any]) -> None:
    """Other edges in each forward; in evaluation none."""

    def work(part: GraphPart) -> None:
        model = distribute(_Sum(lambda edges: drop(edges, training=model.training)), part)
        whole = distribute(_Sum(lambda edges: [edges]), part)(part.x, part.edge_index)
        torch.testing.assert_close(model.eval()(part.x, part.edge_index), whole)
        assert not torch.equal(model.train()(part.x, part.edge_index), whole)

    on_parts(WHOLE, PARTS, work)


def test_degrees_of_one_part_are_refused() -> None:
    """PNA scales by the mean degree: rank 0's took the place of the others' without a word."""

    def work(part: GraphPart) -> None:
        own = torch.bincount(degree(part.edge_index[1], part.num_owned, torch.int64), minlength=50)
        with pytest.raises(SpecError, match=r"deg, the histogram of degrees.*differs between the ranks"):
            distribute(gnn.PNAConv(WIDTH, 4, ["mean"], ["attenuation"], own), part)
        distribute(gnn.PNAConv(WIDTH, 4, ["mean"], ["attenuation"], sum_ranks(own, part)), part)

    on_parts(WHOLE, PARTS, work)


def test_labels_need_a_column_for_each_class() -> None:
    """A rank has not every class; the ranks would make rows of several widths."""

    def work(part: GraphPart) -> None:
        model = distribute(gnn.LabelPropagation(2, 0.9), part)
        with pytest.raises(SpecError, match=r"labels of int64.*num_classes=part\.num_classes"):
            model(part.y, part.edge_index)
        assert model(one_hot(part.y, num_classes=part.num_classes), part.edge_index).shape == (part.num_owned, 3)

    on_parts(WHOLE, PARTS, work)
