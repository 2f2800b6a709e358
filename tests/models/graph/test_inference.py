"""Inference layer by layer over blocks of nodes: what a network says on the whole graph at once."""

import errno
import os
import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs_by_hand import make_directed_graph
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.arrays import Rows
from unilaunch_graph.exchange.gather import save_rows
from unilaunch_graph.inference import Layer, Neighbourhood, infer, neighbourhoods
from unilaunch_graph.new_file import map_new_file
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

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
    return list(split_parts(graph, order_nodes(graph.structure(), owner, num_parts)))


def _torch_layers() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [pyg.SAGEConv(70, 8), pyg.GATConv(8, 4, heads=2, edge_dim=2, add_self_loops=False), pyg.GraphConv(8, 3)]


def _apply(layer: Any, rows: Rows, block: Neighbourhood) -> Rows:
    assert block.edge_weight is not None  # the graph has weights: a part without edges has none of them
    given = {pyg.GATConv: ("edge_attr", block.edge_attr), pyg.GraphConv: ("edge_weight", block.edge_weight)}
    name, array = given.get(type(layer), ("", None))
    tensors = {} if array is None else {name: torch.from_numpy(array)}
    with torch.no_grad():
        out = layer(torch.from_numpy(rows), torch.from_numpy(block.edge_index), **tensors)
    return np.asarray(torch.relu(out[: block.num_targets]).numpy())


def _infer(num_parts: int, memory: int, folder: Path) -> NDArray[np.float32]:
    parts, modules = _parts(num_parts), _torch_layers()
    layers: list[Layer] = [partial(_apply, layer) for layer in modules]

    def work(rank: int, collectives: Collectives) -> None:
        rows = infer(parts[rank], collectives, layers, folder, memory)
        save_rows(folder / "out.npz", parts[rank], {"rows": rows}, collectives)

    on_every_rank(num_parts, work)
    with np.load(folder / "out.npz") as file:
        rows: NDArray[np.float32] = file["rows"]
    assert [path.name for path in folder.iterdir() if "out" in path.name] == ["out.npz"]
    return rows


def test_layers_of_pyg_are_exact_block_by_block(tmp_path: Path) -> None:
    """Edge weights, edge features, nodes without in-edges; any number of parts, and blocks of a few edges."""
    expected = _infer(1, 1 << 30, tmp_path)
    assert np.abs(expected).max() > 0.1
    for num_parts, memory in ((1, 10_000), (4, 10_000), (3, 1)):
        np.testing.assert_allclose(_infer(num_parts, memory, tmp_path), expected, rtol=1e-5, atol=1e-5)


def test_a_block_without_edges_of_a_weighted_graph_has_weights() -> None:
    """None of them: a layer that multiplies by them works there too."""
    (part,) = _parts(1)
    without = [block for block in neighbourhoods(part, 1, is_weighted=True) if not block.edge_index.size]
    assert without
    assert [len(block.edge_weight) for block in without if block.edge_weight is not None] == [0] * len(without)


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


def test_a_file_may_have_the_name_of_an_array(tmp_path: Path) -> None:
    """An array waits in a file beside the result, and the result was once written over it."""
    part = _parts(1)[0]
    rows = np.arange(2 * part.num_owned, dtype=np.float32).reshape(-1, 2)
    save_rows(tmp_path / "rows.npy", part, {"rows": rows}, Alone())
    with np.load(tmp_path / "rows.npy") as file:
        np.testing.assert_array_equal(file["rows"][part.owned], rows)


def test_a_result_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    """A name that is too long; a folder that may not be entered takes the same way."""
    part = _parts(1)[0]
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        save_rows(tmp_path / ("r" * 300), part, {"rows": np.ones((part.num_owned, 1))}, Alone())


@pytest.mark.parametrize("num_edges", [1, 7, 1000])
def test_blocks_have_all_in_edges_of_their_nodes_once(num_edges: int) -> None:
    """And no more edges than they may, unless a node has more."""
    part = _parts(3)[0]
    blocks = list(neighbourhoods(part, num_edges, is_weighted=True))
    assert [(block.span.start, block.span.stop) for block in blocks][-1][1] == part.num_owned
    assert all(one.span.stop == other.span.start for one, other in pairwise(blocks))
    assert all(block.edge_index.shape[1] <= num_edges or block.num_targets == 1 for block in blocks)
    assert sum(block.edge_index.shape[1] for block in blocks) == len(part.owned_indices) + len(part.halo_indices)
    for block in blocks:
        assert len(np.unique(block.nodes)) == len(block.nodes)
        assert (np.diff(block.edge_index[1]) >= 0).all()
