"""Blocks of nodes with all their in-edges, and the files that a prediction writes."""

import errno
import os
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

import unilaunch_graph as ug
from models.graph.torch_parts import make_whole, on_parts
from unilaunch_graph.new_files import map_new_file
from unilaunch_graph.torch.part import GraphPart

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch_geometric: it uses torch.jit.script
    import torch_geometric.nn as pyg


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
