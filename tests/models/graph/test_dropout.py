"""Dropout masks: a function of seed, epoch, layer, node and column, and of nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from unilaunch_graph.dropout import edge_keys, entry_mask, fill_mask, mask_of_words, stream_keys
from unilaunch_graph.operators.torch_masks import edge_keys as torch_edge_keys

F32 = np.dtype(np.float32)


def _mask(
    nodes: NDArray[np.int64], width: int, probability: float = 0.5, seed: int = 0, epoch: int = 0, layer: int = 0
) -> NDArray[np.float32]:
    out = np.empty((len(nodes), width), np.float32)
    fill_mask(out, nodes, stream_keys(seed, epoch, layer), probability)
    return out


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=30, unique=True), st.integers(1, 40), st.integers(0, 2**32 - 1)
)
def test_rows_do_not_depend_on_which_are_asked_for(nodes: list[int], width: int, seed: int) -> None:
    """Any part of the graph makes the same mask, row by row, also for ids above 2**32."""
    whole = _mask(np.array(nodes), width, seed=seed)
    for row, node in zip(whole, nodes, strict=True):
        np.testing.assert_array_equal(row, _mask(np.array([node]), width, seed=seed)[0])


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 0.99))
def test_single_entries_are_the_masks_elements(num_nodes: int, width: int, probability: float) -> None:
    """The sparse features' mask is the dense one's."""
    nodes = np.arange(num_nodes, dtype=np.int64) * 7
    rows, columns = (index.ravel() for index in np.indices((num_nodes, width)))
    entries = entry_mask(nodes[rows], columns, stream_keys(1, 2, 3), probability, F32)
    np.testing.assert_array_equal(entries, _mask(nodes, width, probability, 1, 2, 3).ravel())


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_share_and_scale(probability: float) -> None:
    """Overall, in each row and in each column, 1 - p are kept, and scaled so that the mean stays 1."""
    mask = _mask(np.arange(2000, dtype=np.int64), 500, probability)
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / (1 - probability))}
    assert abs((mask > 0).mean() - (1 - probability)) < 2e-3
    for axis, count in ((0, 2000), (1, 500)):
        shares = (mask > 0).mean(axis=axis)
        spread = (probability * (1 - probability) / count) ** 0.5
        assert shares.std() == pytest.approx(spread, rel=0.15)


def test_rows_of_edges_follow_both_ends_and_how_often_these_come() -> None:
    """Any order and any part of the edges gives each edge its mask; the edge back, and a repeated edge, have others."""
    sources, targets = (ends.ravel() for ends in np.indices((30, 30)))
    ends = [np.concatenate([end, end]) for end in (sources, targets)]
    repeats = np.repeat([0, 1], len(sources))
    keys = stream_keys(1, 2, 3)
    chosen = np.random.default_rng(0).permutation(len(repeats))[:700]
    every = edge_keys(ends[0], ends[1], repeats, keys)
    some = edge_keys(ends[0][chosen], ends[1][chosen], repeats[chosen], keys)
    np.testing.assert_array_equal(every[chosen], some)
    assert len(np.unique(every)) == len(every)
    mask = mask_of_words(every, (len(every), 100), keys, 0.3, F32) > 0
    assert abs(mask.mean() - 0.7) < 5e-3
    first, second = mask[: len(sources)], mask[len(sources) :]
    back = first.reshape(30, 30, 100).swapaxes(0, 1).reshape(first.shape)
    assert all(abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.05 for other in (second, back))
    first_ids, second_ids, third_ids = (torch.from_numpy(ids) for ids in (*ends, repeats))
    np.testing.assert_array_equal(torch_edge_keys(first_ids, second_ids, third_ids, keys).numpy(), every)
