"""Blocks of nodes with all their in-edges, and the files that a prediction writes."""

import errno
import os
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

import unilaunch_graph as ug
from graphs_by_hand import make_directed_graph, parts_of
from models.graph.torch_parts import make_whole, on_parts
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.blocks import Block, Blocks
from unilaunch_graph.new_file import map_new_file
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch_geometric: it uses torch.jit.script
    import torch_geometric.nn as pyg

NODES = 60


def _parts(num_parts: int) -> list[Part]:
    """A directed graph with weights, loops, duplicates, ten nodes that no edge reaches, and a part without nodes."""
    ends = np.random.default_rng(3).integers(0, NODES - 10, (300, 2))
    graph = make_directed_graph(NODES, [(int(a), int(b)) for a, b in ends])
    graph = replace(graph, features=np.random.default_rng(4).standard_normal((NODES, 70)).astype(np.float32))
    owner = np.arange(NODES) % max(1, num_parts - 1)
    return parts_of(graph, owner, num_parts)


def _blocks(part: Part, collectives: Collectives) -> Blocks[Any]:
    return Blocks(part, collectives, lambda arrays: make_part(arrays, Ranks(0, 1, Alone(), torch.device("cpu"))))


def test_a_mapped_file_has_its_room_before_it_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a mapped file on a full disk would end the process by SIGBUS; an error names the file."""
    rows = map_new_file(tmp_path / "rows.npy", np.dtype(np.float32), (1 << 18, 4))
    assert (tmp_path / "rows.npy").stat().st_blocks * 512 >= rows.nbytes == 1 << 22
    assert map_new_file(tmp_path / "none.npy", np.dtype(np.float32), (0, 4)).shape == (0, 4)
    assert np.load(tmp_path / "none.npy").shape == (0, 4)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", create_autospec(os.posix_fallocate, side_effect=full))
    with pytest.raises(OSError, match=r"No space left on device: '.*rows.npy'"):
        map_new_file(tmp_path / "rows.npy", np.dtype(np.float32), (3, 4))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_blocks_have_all_in_edges_of_their_nodes_once(size: int) -> None:
    """And no more nodes and edges than they may, unless a node has more; a part without nodes is one block."""
    parts = _parts(3)

    def work(rank: int, collectives: Collectives) -> list[Block[Any]]:
        return list(_blocks(parts[rank], collectives).over(parts[rank].features, size))

    for part, blocks in zip(parts, on_every_rank(3, work), strict=True):
        assert [(block.targets.start, block.targets.stop) for block in blocks][-1][1] == part.num_owned
        assert all(one.targets.stop == other.targets.start for one, other in pairwise(blocks))
        count = [block.edge_index.shape[1] if block.has_edges else 0 for block in blocks]
        assert sum(count) == len(part.owned_indices) + len(part.halo_indices)
        assert all(
            block.num_targets + number <= size or block.num_targets == 1
            for block, number in zip(blocks, count, strict=True)
        )
        for block in blocks:
            assert block.nodes[: block.num_targets].tolist() == part.owned[block.targets].tolist()
            assert len(np.unique(block.nodes)) == len(block.nodes) == len(block.x)
            assert (np.diff(block.edge_index[1]) >= 0).all()


def test_blocks_know_the_degrees_and_rows_of_the_whole_graph() -> None:
    """Also of the sources that other ranks own."""
    (whole,) = _parts(1)
    every = np.zeros(NODES, np.float32)
    for node, begin, end in zip(whole.owned, whole.owned_indptr, whole.owned_indptr[1:], strict=False):
        every[node] = whole.owned_weights[begin:end].sum()
    features = np.empty((NODES, 70), np.float32)
    features[whole.owned] = whole.features
    parts = _parts(4)

    def work(rank: int, collectives: Collectives) -> None:
        for block in _blocks(parts[rank], collectives).over(parts[rank].features, 9):
            real = block.nodes >= 0
            np.testing.assert_allclose(block.degrees[real], every[block.nodes[real]], rtol=1e-6)
            np.testing.assert_array_equal(block.x[real], features[block.nodes[real]])
            dense = block.with_degrees()
            assert dense.edge_weight is not None
            summed = np.bincount(dense.edge_index[1], dense.edge_weight, len(real))
            np.testing.assert_allclose(summed, block.degrees, rtol=1e-5)

    on_every_rank(4, work)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_loop_over_blocks_is_the_layer(num_parts: int) -> None:
    """As a user writes it, with features of the edges."""
    whole = make_whole()
    torch.manual_seed(0)
    layer = pyg.GATConv(8, 4, heads=2, edge_dim=3).eval()

    def work(part: GraphPart) -> Any:
        out = torch.empty(part.num_owned, 8)
        with torch.no_grad():
            for block in ug.torch.blocks(part.x.float(), part, memory=5000):
                out[block.targets] = layer(block.x, block.edge_index, block.edge_attr)[: block.num_targets]
        return ug.torch.gather(out, part)

    expected = layer(whole.x.float(), whole.edge_index, whole.edge_attr.float()).detach()
    torch.testing.assert_close(on_parts(whole, num_parts, work)[0], expected, rtol=1e-5, atol=1e-5)
