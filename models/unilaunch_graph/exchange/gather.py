"""The rows of all nodes at rank 0, in the user's order: some of each rank at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Ids
from unilaunch_graph.network.ranks import ScriptRanks
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose

#: Rows that a rank sends at a time.
_ROWS = 1 << 14


def gather_rows(part: Part, rows: NDArray[Any], ranks: ScriptRanks) -> Iterator[tuple[Ids, NDArray[Any]]]:
    """Yield global ids and their rows on rank 0, until those of all nodes have come, and nothing on the other ranks.

    All ranks must take all of them.

    Args:
        part: This rank's part.
        rows: Its rows, also mapped from a file. (num_owned, ...)
        ranks: All ranks.
    """
    own, size = part.index, part.num_parts
    sizes = ranks.total(part.num_owned * (np.arange(size) == own), Purpose.GATHER)
    for begin in range(0, int(sizes.max()), _ROWS):
        counts = np.clip(sizes - begin, 0, _ROWS).tolist()
        span = slice(begin, begin + counts[own])
        sent = [counts[own] * (own > 0), *[0] * (size - 1)]
        received = [0, *(count * (own == 0) for count in counts[1:])]
        here = part.owned[span].copy(), np.ascontiguousarray(rows[span])  # torch warns of what is mapped
        others = [ranks.swap(array[: sent[0]], sent, received, Purpose.GATHER) for array in here]
        if own == 0:
            yield here
            yield others[0], others[1]


def gather(part: Part, rows: NDArray[Any], ranks: ScriptRanks) -> NDArray[Any] | None:
    """Return the rows of all nodes on rank 0, None elsewhere; the arguments are those of `gather_rows`."""
    whole = np.empty((part.num_nodes * (part.index == 0), *rows.shape[1:]), rows.dtype)
    for nodes, values in gather_rows(part, rows, ranks):
        whole[nodes] = values
    return None if part.index else whole
