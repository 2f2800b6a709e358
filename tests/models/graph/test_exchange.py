"""Rows of the halo, in shared memory or in messages, as rows or partial sums, exact or in 16 bits: the right ones."""

import errno
import gc
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_directed_graphs, cut_graphs, make_graph, parts_of
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
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


def _open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_without_shared_memory_rows_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ranks, also if one alone cannot share, and only its second file fails; what was opened is closed."""
    names: list[str] = []
    make = os.memfd_create

    def refuse_one_rank(name: str) -> int:
        names.append(name)
        if names.count(name) == 2 and name == names[0]:
            raise OSError(errno.EMFILE, name)
        return make(name)

    def work(rank: int, collectives: Collectives) -> None:
        halo = HaloExchange(TRIANGLE[rank], collectives)
        assert halo.begin(np.array([[float(rank)]])).wait()[:, 0].tolist() == TRIANGLE[rank].halo.tolist()
        assert halo.shared is None

    monkeypatch.setattr(os, "memfd_create", refuse_one_rank)
    before = _open_files()
    on_every_rank(3, work)
    assert _open_files() == before


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
