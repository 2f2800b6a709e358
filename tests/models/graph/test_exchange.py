"""Rows of the halo, in shared memory or in messages, exact or in 16 bits, and rows of any nodes: the right ones."""

import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch_geometric import nn

from graphs_by_hand import Cut, cut_directed_graphs, cut_graphs, make_graph, parts_of
from models.graph.layers_of_pyg import seeded
from models.graph.torch_parts import WHOLE, each_part, on_parts
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError
from unilaunch.interfaces.backend import Collectives
from unilaunch_graph import torch as ug
from unilaunch_graph.exchange.halo import Directory, HaloExchange, RowFetch, RowHalo
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.portable import from_bfloat16, to_bfloat16
from unilaunch_graph.network.ranks import ScriptRanks

#: Three nodes, each in a part of its own, and each a neighbour of both others.
TRIANGLE = parts_of(make_graph(3, [(0, 1), (1, 2), (0, 2)]), np.arange(3), 3)


@settings(max_examples=30)
@given(cut_directed_graphs())
def test_halo_and_fetch_and_their_transposes(cut: Cut) -> None:
    """The rows are the right nodes', of the halo or of any nodes, and <H x, y> == <x, H^T y> over all ranks."""
    graph, owner, num_parts = cut
    parts = parts_of(graph, owner, num_parts)
    rows = np.random.default_rng(0).normal(size=(graph.num_nodes, 2))

    def work(rank: int, collectives: Collectives) -> Any:
        part, draw, difference = parts[rank], np.random.default_rng(rank), 0.0
        halo, nodes = RowHalo(part, collectives), draw.integers(0, graph.num_nodes, 9 * rank)
        fetch = RowFetch(halo, Directory(part, ScriptRanks(rank, num_parts, collectives)).plan(nodes))
        for operator, names in ((halo, np.concatenate((part.owned, part.halo))), (fetch, nodes)):
            found = operator.matmat(rows[part.owned])
            np.testing.assert_array_equal(found, rows[names])
            back = draw.normal(size=found.shape)
            difference += (found * back).sum() - (rows[part.owned] * operator.rmatmat(back)).sum()
        return difference

    assert abs(sum(on_every_rank(num_parts, work))) < 1e-10


@given(
    cut=cut_graphs(), widths=st.lists(st.sampled_from([1, 3, 40]), min_size=1, max_size=5),
    dtype=st.sampled_from([np.float32, np.float64]), rounds=st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_rows_are_written_where_they_are_read(cut: Cut, widths: list[int], dtype: type, *, rounds: bool) -> None:
    """Of any widths, one exchange after the other; the bytes that arrive are counted as of messages."""
    parts, draw = parts_of(*cut), np.random.default_rng(0)
    x: list[Any] = [draw.standard_normal((cut[0].num_nodes, width), np.float32).astype(dtype) for width in widths]

    def work(rank: int, collectives: Collectives) -> None:
        part, meter = parts[rank], Meter()
        halo = HaloExchange(part, collectives, meter, rounds=rounds)
        arrived = [halo.begin(rows[part.owned]).wait().copy() for rows in x]
        assert (halo.shared is not None) == (len(parts) > 1)
        assert meter.read()[1] == part.num_halo * sum(widths) * (2 if rounds else np.dtype(dtype).itemsize)
        for rows, found in zip(x, arrived, strict=True):
            np.testing.assert_allclose(found, rows[part.halo], rtol=2.0**-8 if rounds else 0)

    on_every_rank(len(parts), work)


def test_rows_stay_while_others_have_begun_the_next_exchange() -> None:
    """A rank that is slow still reads: the next rows go to the other file."""
    x = np.arange(12.0).reshape(4, 3, 1)

    def work(rank: int, collectives: Collectives) -> None:
        part = TRIANGLE[rank]
        halo = HaloExchange(part, collectives)
        for rows, following in pairwise(x):
            arrived = halo.begin(rows[part.owned]).wait()
            begun = halo.begin(following[part.owned]) if rank else None
            collectives.barrier()
            assert rank or (arrived == rows[part.halo]).all()
            begun = begun or halo.begin(following[part.owned])
            assert (begun.wait() == following[part.halo]).all()

    on_every_rank(3, work)


def test_where_one_rank_alone_cannot_share_all_send_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here its second file fails; the others would wait for rows in theirs for ever."""
    names, make = [], os.memfd_create

    def refuse(name: str) -> int:
        names.append(name)
        return os.open("", 0) if name == names[0] and names.count(name) == 2 else make(name)

    monkeypatch.setattr(os, "memfd_create", refuse)

    def work(rank: int, collectives: Collectives) -> None:
        halo = HaloExchange(TRIANGLE[rank], collectives)
        assert halo.shared is None
        assert (halo.begin(np.arange(3.0)[[rank], None]).wait()[:, 0] == TRIANGLE[rank].halo).all()

    on_every_rank(3, work)


def test_bfloat16_rounds_ties_to_even() -> None:
    """As torch does: half a step away is rounded to the word whose last bit is 0; no diverged number becomes finite."""
    words = np.array([0x3F80, 0x3F81, 0x4049, 0x404A, 0x0001, 0x7F7E, 0], np.uint32)
    for half in (0x7FFF, 0x8000, 0x8001):
        for sign in (0, 0x8000_0000):
            numbers = ((words << 16) + half + sign).astype(np.uint32).view(np.float32)
            expected = torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16)
            np.testing.assert_array_equal(to_bfloat16(numbers), expected)
    with np.errstate(invalid="ignore"):  # as in a training
        arrived = from_bfloat16(to_bfloat16(np.array([[np.nan, -np.nan, np.inf, -np.inf, 1.5]], np.float32)))
    assert np.isfinite(arrived).tolist() == [[False] * 4 + [True]]


def _nodes(rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(rank).integers(0, 40, shape))


@pytest.mark.parametrize(
    ("size", "owner"),
    [(1, None), (3, None), (2, np.zeros(40)), (3, np.arange(40) % 2 * 2)],
    ids=["alone", "by turns", "one rank has all", "the middle one has none"],
)
@pytest.mark.parametrize(("dtype", "shape"), [(torch.bfloat16, (2, 3)), (torch.int64, ()), (torch.bool, (2, 3))])
def test_rows_are_those_of_the_nodes(dtype: torch.dtype, shape: tuple[int, ...], size: int, owner: Any) -> None:
    """Of any shape, from any rank, the same node several times; a rank may ask for none."""
    rows = (torch.randn(40, *shape) * 9).to(dtype)

    def work(part: ug.GraphPart) -> None:
        own = rows[part.owned]
        for nodes in (_nodes(part.rank, (2, 70)), _nodes(part.rank, (2 * part.rank,)), _nodes(part.rank, ())):
            assert torch.equal(ug.fetch(own, nodes, part), rows[nodes])
        assert torch.equal(ug.fetch(own, [3] * part.rank, part), rows[3].expand(part.rank, *shape))
        assert torch.equal(ug.fetch(own, np.arange(40, dtype=np.int32), part), rows)

    on_parts(WHOLE, size, work, owner)


def test_links_are_learnt_as_by_pyg_alone() -> None:
    """In float64: the loss of pairs, of which every rank has a share, gradients of a GCN, and second derivatives."""
    pairs, models = _nodes(0, (2, 61)), seeded(lambda: nn.GCN(8, 6, 2, 4).double(), 4)

    def scored(ends: torch.Tensor) -> torch.Tensor:
        return functional.softplus((ends[0] * ends[1]).sum(-1))

    def penalty(ends: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(scored(ends).sum(), rows, create_graph=True)[0].square().sum()

    def work(part: ug.GraphPart) -> None:
        model = ug.distribute(models[part.rank], part)
        rows = model(part.x, part.edge_index)
        ends = ug.fetch(rows, pairs[:, part.rank :: part.world_size], part)
        loss = ug.mean(scored(ends), 61, part)
        torch.autograd.backward(loss + penalty(ends, rows))
        ug.sum_gradients(model, part)
        found = [loss, *(one.grad for one in model.parameters())]
        torch.testing.assert_close(found, [expected, *(one.grad for one in models[3].parameters())], rtol=0, atol=1e-10)

    rows = models[3](WHOLE.x, WHOLE.edge_index)
    expected = scored(rows[pairs]).mean()
    torch.autograd.backward(expected + penalty(rows[pairs], rows))
    on_parts(WHOLE, 3, work)


@pytest.mark.parametrize(("nodes", "words"), [
    ([3, 40], "node 40: expected ids from 0 to 39"), (torch.tensor([-1, 3]), "node -1: expected"),
    (WHOLE.train_mask, "nodes are bool: expected integers"), ([0.5], "nodes are float64: expected integers"),
])  # fmt: skip
@each_part(1)
def test_what_is_no_node_is_refused(part: ug.GraphPart, nodes: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"fetch: {words}"):
        ug.fetch(part.x, nodes, part)
    with pytest.raises(ValueError, match=r"expected num_owned = 40 rows"):
        ug.fetch(part.x[1:], [3], part)
