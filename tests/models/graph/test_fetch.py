"""Rows of any nodes, from the ranks that own them: `ug.torch.fetch`. In MindSpore: programs/mindspore_ranks.py."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_geometric import nn

from models.graph.torch_parts import WHOLE, each_part, on_parts
from unilaunch.errors import InputError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.part import GraphPart

each_owner = pytest.mark.parametrize(
    ("size", "owner"),
    [(1, None), (3, None), (2, np.zeros(40)), (3, np.arange(40) % 2 * 2)],
    ids=["alone", "by turns", "one rank has all", "the middle one has none"],
)


def _nodes(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(rank).integers(0, 40, shape))


@each_owner
@pytest.mark.parametrize(("dtype", "shape"), [(torch.bfloat16, (2, 3)), (torch.int64, ()), (torch.bool, (2, 3))])
def test_rows_are_those_of_the_nodes(dtype: torch.dtype, shape: tuple[int, ...], size: int, owner: Any) -> None:
    """Of any shape, from any rank, the same node several times; a rank may ask for none."""
    rows = (torch.randn(40, *shape) * 9).to(dtype)

    def work(part: GraphPart) -> None:
        own = rows[part.owned]
        for nodes in (_nodes(part.rank, (2, 70)), _nodes(part.rank, (2 * part.rank,)), _nodes(part.rank, ())):
            assert torch.equal(ug.fetch(own, nodes, part), rows[nodes])
        assert torch.equal(ug.fetch(own, [3] * part.rank, part), rows[3].expand(part.rank, *shape))
        assert torch.equal(ug.fetch(own, np.arange(40, dtype=np.int32), part), rows)

    on_parts(WHOLE, size, work, owner)


@each_owner
def test_gradients_go_to_the_owners(size: int, owner: Any) -> None:
    """Also the second derivative: those of the rows of the whole graph, in one process."""
    rows = torch.randn(40, 4, dtype=torch.float64, requires_grad=True)
    pairs = [_nodes(rank, (2, 50 * (rank != 1))) for rank in range(size)]  # rank 1 has none

    def derivatives(of: torch.Tensor, ends: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        loss = torch.stack([(two[0] * two[1]).sum(-1).sin().sum() for two in ends]).sum()
        first = torch.autograd.grad(loss, of, create_graph=True)[0]
        return first.detach(), torch.autograd.grad((first**2).sum(), of)[0]

    def work(part: GraphPart) -> None:
        own = rows.detach()[part.owned].requires_grad_()
        found = derivatives(own, [ug.fetch(own, pairs[part.rank], part)])
        torch.testing.assert_close(found, tuple(one[part.owned] for one in expected), rtol=0, atol=1e-12)

    expected = derivatives(rows, [rows[nodes] for nodes in pairs])
    on_parts(WHOLE, size, work, owner)


def test_links_are_learnt_as_by_pyg_alone() -> None:
    """In float64: the loss of pairs of nodes, of which every rank has a share, and the gradients of a GCN."""
    pairs = _nodes(0, (2, 61))
    layers = [(nn.GCNConv(8, 6), "x, e -> x"), torch.nn.ReLU(), (nn.GCNConv(6, 4), "x, e -> x")]
    alone = nn.Sequential("x, e", layers).double()
    models = [copy.deepcopy(alone) for _ in range(3)]

    def scored(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.softplus((source * target).sum(-1))

    def work(part: GraphPart) -> None:
        model = ug.distribute(models[part.rank], part)
        ends = ug.fetch(model(part.x, part.edge_index), pairs[:, part.rank :: part.world_size], part)
        loss = ug.mean(scored(*ends), 61, part)
        torch.autograd.backward(loss)
        ug.sum_gradients(model, part)
        found = [loss, *(one.grad for one in model.parameters())]
        torch.testing.assert_close(found, [expected, *(one.grad for one in alone.parameters())], rtol=0, atol=1e-10)

    expected = scored(*alone(WHOLE.x, WHOLE.edge_index)[pairs]).mean()
    torch.autograd.backward(expected)
    on_parts(WHOLE, 3, work)


@pytest.mark.parametrize(("nodes", "words"), [
    ([3, 40], "node 40: expected ids from 0 to 39"),
    (torch.tensor([-1, 3]), "node -1: expected"),
    (WHOLE.train_mask, "nodes are bool: expected integers"),
    ([0.5], "nodes are float64: expected integers"),
])  # fmt: skip
@each_part(1)
def test_what_is_no_node_is_refused(part: GraphPart, nodes: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"fetch: {words}"):
        ug.fetch(part.x, nodes, part)
    with pytest.raises(ValueError, match=r"expected num_owned = 40 rows"):
        ug.fetch(part.x[1:], [3], part)
