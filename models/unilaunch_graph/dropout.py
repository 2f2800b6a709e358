"""Dropout that does not depend on the parts: its mask is a function of seed, epoch, layer, node and column.

Each pair of node and column gets 32 bits from a hash (the mixing function "lowbias32" of Chris Wellons' hash
prospector), so any rank can make any rows of the mask, on any framework, and gets the same. A row of an edge has the
ids of both ends in place of the node's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, FloatType

Words = NDArray[np.uint32]

_MASK64 = (1 << 64) - 1
#: Added to an edge's word for each edge with the same ends before it.
REPEAT = 0x9E3779B9
#: Elements that are hashed at a time, so that they fit into a core's cache.
_BLOCK = 1 << 16


def stream_keys(seed: int, epoch: int, layer: int) -> tuple[int, int]:
    """Return two 32-bit keys for one mask: splitmix64 (Steele, Lea and Flood, OOPSLA 2014) over its coordinates."""
    state = 0
    for word in (seed, epoch, layer):
        state = (state + int(word) + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state & 0xFFFFFFFF, state >> 32


def least_kept(probability: float) -> int:
    """Return the smallest 32-bit word whose element is kept."""
    return min(round(probability * 2**32), 2**32 - 1)


def scale_of_kept(probability: float) -> float:
    """Return what the elements that are kept are multiplied by, so that the mean stays."""
    return 1.0 / (1.0 - probability)


def mix(words: Words) -> Words:
    """Hash 32-bit words in place, and return them."""
    shifted = np.right_shift(words, 16)
    words ^= shifted
    words *= np.uint32(0x7FEB352D)
    words ^= np.right_shift(words, 15, out=shifted)
    words *= np.uint32(0x846CA68B)
    words ^= np.right_shift(words, 16, out=shifted)
    return words


def row_keys(nodes: NDArray[np.int64], keys: tuple[int, int]) -> Words:
    """Return one word for each global node id."""
    low = nodes.astype(np.uint32)
    high = (nodes >> 32).astype(np.uint32)
    return mix(low ^ mix(high ^ np.uint32(keys[0])))


def edge_keys(
    sources: NDArray[np.int64], targets: NDArray[np.int64], repeats: NDArray[np.int64], keys: tuple[int, int]
) -> Words:  # fmt: skip
    """Return one word for each edge.

    Args:
        sources: Global ids of the edges' sources. (edges,)
        targets: Global ids of their targets. (edges,)
        repeats: How many edges with the same ends stand before each of them. (edges,)
        keys: The mask's `stream_keys`.
    """
    words = mix(row_keys(sources, keys) ^ row_keys(targets, keys[::-1]))
    words += repeats.astype(np.uint32) * np.uint32(REPEAT)
    return words


def column_keys(columns: NDArray[np.integer[Any]], keys: tuple[int, int]) -> Words:
    """Return one word for each column."""
    return mix(columns.astype(np.uint32) + np.uint32(keys[1]))


@dataclass(frozen=True, slots=True)
class MaskWords:
    """What a mask is made of: the element (i, j) is kept if mix(rows[i] ^ columns[j]) is *least* or more.

    Attributes:
        rows: `row_keys` of the rows' nodes. (rows,)
        columns: `column_keys`. (width,)
        least: The least word that is kept.
        scale: What is kept is multiplied by this.
    """

    rows: Words
    columns: Words
    least: int
    scale: float

    def fill(self, out: Floats, span: slice) -> None:
        """Write some rows of the mask: *scale* where an element is kept, else 0. (rows of the span, width)"""
        words = mix(self.rows[span, None] ^ self.columns)
        np.multiply(words >= np.uint32(self.least), out.dtype.type(self.scale), out=out)

    def times(self, rows: Floats) -> Floats:
        """Return the mask times rows. (rows, width)"""
        out = np.empty_like(rows)
        for span in self.spans():
            self.fill(out[span], span)
            out[span] *= rows[span]
        return out

    def of(self, span: slice) -> "MaskWords":
        """Return the words of some rows."""
        return replace(self, rows=self.rows[span])

    def spans(self) -> Iterator[slice]:
        """Yield stretches of rows whose words stay in a core's cache."""
        step = max(1, _BLOCK // max(1, len(self.columns)))
        return (slice(begin, begin + step) for begin in range(0, len(self.rows), step))


def mask_words(nodes: NDArray[np.int64], width: int, keys: tuple[int, int], probability: float) -> MaskWords:
    """Return what the mask of some rows is made of; the arguments are those of `fill_mask`."""
    rows, columns = row_keys(nodes, keys), column_keys(np.arange(width), keys)
    return MaskWords(rows, columns, least_kept(probability), scale_of_kept(probability))


def fill_mask(out: Floats, nodes: NDArray[np.int64], keys: tuple[int, int], probability: float) -> None:
    """Fill *out* with 0 where an element is dropped, and 1 / (1 - probability) where it is kept.

    Args:
        out: The mask. (len(nodes), width) float32 or float64
        nodes: Global ids of the rows. (rows,)
        keys: The mask's `stream_keys`.
        probability: Share that is dropped, below 1.
    """
    words = mask_words(nodes, out.shape[1], keys, probability)
    for span in words.spans():
        words.fill(out[span], span)


def mask_of_words(
    rows: Words, shape: tuple[int, ...], keys: tuple[int, int], probability: float, dtype: FloatType
) -> Floats:  # fmt: skip
    """Return the mask of rows of any shape from one word for each row: `row_keys` or `edge_keys`. (len(rows), ...)"""
    mask: Floats = np.empty((shape[0], prod(shape[1:])), dtype)
    columns = column_keys(np.arange(mask.shape[1]), keys)
    words = MaskWords(rows, columns, least_kept(probability), scale_of_kept(probability))
    for span in words.spans():
        words.fill(mask[span], span)
    return mask.reshape(shape)


def entry_mask(
    nodes: NDArray[np.int64], columns: NDArray[np.integer[Any]], keys: tuple[int, int], probability: float,
    dtype: FloatType,
) -> Floats:  # fmt: skip
    """Return the same mask's elements at single places: those of a sparse matrix.

    Args:
        nodes: Global id of each entry's row. (entries,)
        columns: Column of each entry. (entries,)
        keys: The mask's `stream_keys`.
        probability: Share that is dropped, below 1.
        dtype: Type of the mask.
    """
    words = mix(row_keys(nodes, keys) ^ column_keys(columns, keys))
    return (words >= np.uint32(least_kept(probability))) * dtype.type(scale_of_kept(probability))
