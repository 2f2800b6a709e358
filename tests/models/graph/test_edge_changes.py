"""PyG's functions that change edges or features in a user's forward: right on parts, or refused in one line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    dropout_adj,
    dropout_edge,
    mask_feature,
    normalize_edge_index,
    one_hot,
)
from typing_extensions import override

from models.graph.layers_of_pyg import Case
from models.graph.test_torch_layers import PARTS, WHOLE, WITHOUT_EDGES, check_exact
from models.graph.torch_parts import on_parts
from unilaunch.errors import SpecError
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.reductions import mean, sum_gradients, sum_ranks

WIDTH = 8
Make = Callable[[], torch.nn.Module]


@pytest.fixture(autouse=True)
def _float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class _Sum(MessagePassing):  # type: ignore[misc]  # PyG ships no types
    """Changes the edges, and sums the rows of the sources."""

    undirected = False

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Sum over the changed edges."""
        edge_index, weight = self.change(x, edge_index)
        if weight is None:
            weight = torch.ones(edge_index.size(1))
        out: torch.Tensor = self.propagate(edge_index, x=x, weight=weight)
        return out

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Weigh the sources."""
        return x_j * weight[:, None]

    def change(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """Normalise by the degrees of both ends."""
        return normalize_edge_index(edge_index, x.size(0))


class _BySource(_Sum):
    @override
    def change(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return normalize_edge_index(edge_index, x.size(0), add_self_loops=False, symmetric=False)


class _NewLoops(_Sum):
    @override
    def change(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return add_self_loops(edge_index)


class _Loops(_Sum):
    @override
    def change(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return add_remaining_self_loops(edge_index)


class _Dropped(_Sum):
    @override
    def change(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return dropout_edge(edge_index, 0.5, self.undirected, training=self.training)[0], None


class _DroppedAsBefore(_Sum):
    @override
    def change(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return dropout_adj(edge_index, force_undirected=self.undirected, training=self.training)


@pytest.mark.parametrize("owner", [None, WITHOUT_EDGES], ids=["", "a part without edges"])
@pytest.mark.parametrize("make", [_Sum, _BySource])
def test_a_normalisation_counts_all_ranks_edges(make: Make, owner: Any) -> None:
    """PyG's function for it counts the edges that it is given."""
    check_exact(Case(make), owner)


@pytest.mark.parametrize("owner", [None, WITHOUT_EDGES], ids=["", "a part without edges"])
@pytest.mark.parametrize("make", [_NewLoops, _Loops, lambda: gnn.EGConv(WIDTH, 8, ["mean", "max"], 2, 2)])
def test_loops_are_those_of_the_owned_nodes(make: Make, owner: Any) -> None:
    """Without num_nodes PyG takes the largest number in the edges, which may be a halo node's, or of no edge."""

    def work(part: GraphPart) -> None:
        layer = distribute(make(), part)
        rows = layer(part.x, part.edge_index)
        if isinstance(layer, _Sum):
            loops = torch.arange(part.num_owned).repeat(2, 1)
            edges = part.edge_index
            if isinstance(layer, _Loops):
                edges = edges[:, edges[0] != edges[1]]
            changed = torch.cat([edges, loops], 1), None
            layer.change = lambda *_: changed  # type: ignore[method-assign]
            torch.testing.assert_close(rows, layer(part.x, part.edge_index))
        assert len(rows) == part.num_owned
        assert rows.isfinite().all()

    on_parts(WHOLE, PARTS, work, owner)


class _Masked(torch.nn.Module):
    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, mask = mask_feature(x, 0.5, training=self.training)
        found: torch.Tensor = mask
        return found


def test_masked_features_are_the_same_on_all_ranks() -> None:
    """A masked column is of all nodes; nothing is masked outside of training."""

    def work(part: GraphPart) -> torch.Tensor:
        model = distribute(_Masked(), part)
        assert model.eval()(part.x).all()
        masks: torch.Tensor = torch.cat([model.train()(part.x) for _ in range(8)])
        return masks

    first, *others = on_parts(WHOLE, PARTS, work)
    assert first.shape == (8, WIDTH)
    assert 0 < first.sum() < first.numel()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.filterwarnings("ignore:'dropout_adj' is deprecated")
@pytest.mark.parametrize("make", [_Dropped, _DroppedAsBefore])
def test_edges_are_dropped_in_one_direction(make: Callable[[], _Sum]) -> None:
    """An edge and the one back may be on two ranks: PyG would drop every edge whose source has the larger number."""

    def work(part: GraphPart) -> None:
        model: Any = distribute(make(), part)
        model.undirected = True
        with pytest.raises(SpecError, match="force_undirected=True: an edge and the one back"):
            model(part.x, part.edge_index)
        whole = model.eval()(part.x, part.edge_index)
        model.undirected = False
        assert torch.equal(model(part.x, part.edge_index), whole)
        assert not torch.equal(model.train()(part.x, part.edge_index), whole)

    on_parts(WHOLE, PARTS, work)


def test_degrees_of_one_part_are_refused() -> None:
    """PNA scales by the mean degree: rank 0's took the place of the others' without a word."""

    def work(part: GraphPart) -> None:
        degrees = degree(part.edge_index[1], part.num_owned, torch.int64)

        def make(histogram: torch.Tensor) -> torch.nn.Module:
            layer: torch.nn.Module = gnn.PNAConv(WIDTH, 4, ["mean"], ["attenuation"], histogram)
            return layer

        own = torch.bincount(degrees, minlength=50)
        with pytest.raises(SpecError, match=r"deg, the histogram of degrees.*differs between the ranks"):
            distribute(make(own), part)
        distribute(make(sum_ranks(own, part)), part)

    on_parts(WHOLE, PARTS, work)


def test_labels_need_a_column_for_each_class() -> None:
    """A rank has not every class; the ranks would make rows of several widths."""

    def work(part: GraphPart) -> None:
        model = distribute(gnn.LabelPropagation(2, 0.9), part)
        with pytest.raises(SpecError, match=r"labels of int64.*num_classes=part\.num_classes"):
            model(part.y, part.edge_index)
        assert model(one_hot(part.y, num_classes=part.num_classes), part.edge_index).shape == (part.num_owned, 3)

    on_parts(WHOLE, PARTS, work)


def _log_variance(layer: torch.nn.Linear, x: torch.Tensor, count: int, add: Callable[[torch.Tensor], Any]) -> Any:
    rows = layer(x)
    centred = rows - add(rows.sum(0)) / count
    return (add(centred.square().sum(0)) / count).log().sum()


def test_a_loss_of_statistics_counts_once() -> None:
    """Each rank has the whole of such a loss: its mean over the ranks has its gradient once."""
    alone = torch.nn.Linear(WIDTH, 3)
    expected = _log_variance(alone, WHOLE.x, len(WHOLE.x), lambda value: value)
    expected.backward()
    state = alone.state_dict()

    def work(part: GraphPart) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = torch.nn.Linear(WIDTH, 3)
        layer.load_state_dict(state)
        loss = _log_variance(layer, part.x, part.num_nodes, lambda value: sum_ranks(value, part))
        loss = mean(loss, part.world_size, part)
        loss.backward()  # type: ignore[no-untyped-call]
        sum_gradients(layer, part)
        return loss, layer.weight.grad

    for loss, grad in on_parts(WHOLE, PARTS, work):
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(grad, alone.weight.grad)
