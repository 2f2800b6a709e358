"""Receive buffers in memory that ranks share: the rows of messages, and messages where memory cannot be shared."""

import gc
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_graphs, make_graph
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.calibration import SilentCollectives
from unilaunch_graph.exchange import shared_memory
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import BFloat16, Exact, Wire
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

#: Three nodes, each in a part of its own, and each a neighbour of both others.
TRIANGLE = make_graph(3, [(0, 1), (1, 2), (0, 2)])


def _parts(cut: Cut) -> list[Part]:
    graph, owner, num_parts = cut
    return list(split_parts(graph, order_nodes(graph, owner, num_parts)))


def _triangle() -> list[Part]:
    return _parts((TRIANGLE, np.arange(3), 3))


@given(
    cut=cut_graphs(),
    widths=st.lists(st.sampled_from([1, 3, 40]), min_size=1, max_size=5),
    dtype=st.sampled_from([np.float32, np.float64]),
    wire=st.sampled_from([Exact(), BFloat16()]),
)
@settings(max_examples=40)
def test_rows_are_written_where_they_are_read(cut: Cut, widths: list[int], dtype: type, wire: Wire) -> None:
    """Of any widths, one exchange after the other; the bytes that arrive are counted as of messages."""
    parts = _parts(cut)
    x = [np.random.default_rng(at).standard_normal((cut[0].num_nodes, width)) for at, width in enumerate(widths)]
    exact: list[Any] = [rows.astype(np.float32).astype(dtype) for rows in x]

    def work(rank: int, collectives: Collectives) -> tuple[bool, list[Any], int]:
        part, meter = parts[rank], Meter()
        halo = HaloExchange(part, collectives, meter, wire)
        arrived = [halo.begin(rows[part.owned]).wait().copy() for rows in exact]
        return halo.shared is not None, arrived, meter.read()[1]

    for part, (is_shared, arrived, received) in zip(parts, on_every_rank(len(parts), work), strict=True):
        assert is_shared == (len(parts) > 1)
        size = 2 if isinstance(wire, BFloat16) else np.dtype(dtype).itemsize
        assert received == part.num_halo * sum(widths) * size
        for rows, found in zip(exact, arrived, strict=True):
            near = 2.0**-8 if isinstance(wire, BFloat16) else 0
            np.testing.assert_allclose(found, rows[part.halo], rtol=near)


def test_rows_stay_while_others_have_begun_the_next_exchange() -> None:
    """A rank that is slow still reads: the next rows go to the other file."""
    parts, x = _triangle(), np.arange(12.0).reshape(4, 3, 1)

    def work(rank: int, collectives: Collectives) -> bool:
        part = parts[rank]
        halo = HaloExchange(part, collectives, Meter(), Exact())
        right = []
        for rows, following in pairwise(x):
            arrived = halo.begin(rows[part.owned]).wait()
            begun = halo.begin(following[part.owned]) if rank else None
            collectives.barrier()
            right.append(rank or (arrived == rows[part.halo]).all())
            begun = begun or halo.begin(following[part.owned])
            right.append((begun.wait() == following[part.halo]).all())
        return all(right)

    assert on_every_rank(3, work) == [True] * 3


@pytest.mark.parametrize("lacking", ["files", "host", "access"])
def test_without_shared_memory_rows_are_messages(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ranks, also if one alone cannot; what was opened is closed."""
    parts, x, made = _triangle(), np.arange(3.0)[:, None], []
    make, open_files, host = shared_memory._make_files, shared_memory._open_files, shared_memory._host

    def make_files(name: str) -> list[int]:
        made.append(name)
        return [] if lacking == "files" and len(made) == 2 else make(name)

    def open_them(address: Any, own: Any) -> list[int]:
        is_refused = lacking == "access" and address["name"] != own["name"] and own["name"].decode() == made[0]
        return [] if is_refused else open_files(address, own)

    def name_host() -> bytes:
        return host()[1:] + str(len(made)).encode() if lacking == "host" else host()

    monkeypatch.setattr(shared_memory, "_make_files", make_files)
    monkeypatch.setattr(shared_memory, "_open_files", open_them)
    monkeypatch.setattr(shared_memory, "_host", name_host)

    def work(rank: int, collectives: Collectives) -> tuple[bool, list[float]]:
        halo = HaloExchange(parts[rank], collectives, Meter(), Exact())
        return halo.shared is None, halo.begin(x[parts[rank].owned]).wait()[:, 0].tolist()

    before = _open_files()
    found = on_every_rank(3, work)
    assert _open_files() == before
    assert found == [(True, [1.0, 2.0]), (True, [0.0, 2.0]), (True, [0.0, 1.0])]


def test_what_was_opened_is_closed_with_the_exchange() -> None:
    parts, x = _triangle(), np.arange(3.0)[:, None]

    def work(rank: int, collectives: Collectives) -> None:
        HaloExchange(parts[rank], collectives, Meter(), Exact()).begin(x[parts[rank].owned]).wait()

    before = _open_files()
    on_every_rank(3, work)
    assert _open_files() == before


def _open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_rows_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """And fewer columns of them are written, in any order of the two."""
    monkeypatch.setattr(shared_memory, "_MOST_BYTES", 5 * 2 * 8)
    parts, x = _triangle(), np.arange(3.0)[:, None]

    def work(rank: int, collectives: Collectives) -> list[bool]:
        part, right = parts[rank], []
        halo = HaloExchange(part, collectives, Meter(), Exact())
        for width in (5, 6, 5, 1, 8):
            arrived = halo.begin(x[part.owned].repeat(width, 1)).wait()
            assert halo.shared
            right += [(arrived == x[part.halo]).all(), halo.shared.pays(width, np.float64) == (width < 6)]
        return right

    assert on_every_rank(3, work) == [[True] * 10] * 3


def test_one_rank_shares_nothing() -> None:
    assert shared_memory.share_buffers(Alone(), [0], [0]) is None


def test_ranks_that_hear_themselves_share_nothing() -> None:
    """As those of `plan`'s calibration, over which no row moves."""
    before = _open_files()
    assert shared_memory.share_buffers(SilentCollectives(), [0, 1], [0, 1]) is None
    assert _open_files() == before


def test_where_linux_has_no_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert shared_memory._make_files("a") == []
    monkeypatch.delattr(os, "memfd_create")
    assert shared_memory._make_files("a") == []


def test_a_file_of_another_name_is_not_opened() -> None:
    """As where a process has ended, and another one has its number."""
    own = np.array([(shared_memory._host(), 1, [0, 1], "a" * 32)], shared_memory._ADDRESS)
    assert shared_memory._open_files(own[0], own[0]) == []
