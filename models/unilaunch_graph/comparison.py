"""What a network gives on a small graph as a whole, and in parts: whether it is the same, and where it first is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, log10
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Ids

Array: TypeAlias = NDArray[Any]

WHERE = "in three parts of a small graph"
#: Gradients of parameters below this share of the largest one are rounding: in float64, and in smaller types, where a
#: sum of terms that cancel has lost as many digits as they have in common.
_SMALL, _SMALL_ROUNDED = 1e-3, 0.1
_FLOAT64 = 1e-6  # the largest difference that is asked of float64 is less


@dataclass(frozen=True, slots=True)
class RowIds:
    """Which rows of the whole graph those of a part are.

    Attributes:
        owned: Global ids of the owned nodes. (num_owned,)
        nodes: Those and the ids of the halo nodes. (num_owned + num_halo,)
        edges: The number of each edge in the whole graph. (num_edges,)
    """

    owned: Ids
    nodes: Ids
    edges: Ids

    def of(self, rows: Any) -> Ids | None:
        """Return the ids of *rows*, an array or a tensor; None: they are no rows of nodes or edges."""
        if not rows.ndim:
            return None
        return next((ids for ids in (self.owned, self.nodes, self.edges) if len(ids) == len(rows)), None)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a network has given.

    Attributes:
        ids: Which rows of the whole graph its rows are.
        outputs: The arrays of its output.
        inputs: The gradient of each of the node rows that it was given; None: it has none.
        weights: The gradient of each parameter; None: it has none.
        steps: What each module took and returned, in time, with the place in words; empty unless asked for.
    """

    ids: RowIds
    outputs: Sequence[Array]
    inputs: Sequence[Array | None]
    weights: Sequence[Array | None]
    steps: Sequence[tuple[str, Array]]


def difference(whole: Run, parts: Sequence[Run], most: float) -> str:
    """Return what differs, in words; "" if nothing does.

    Args:
        whole: The run on the whole.
        parts: The runs on parts, by rank.
        most: Largest difference, as a share of the largest number.
    """
    if any(len(run.outputs) != len(whole.outputs) for run in parts):
        return f"{WHERE} it returns another number of outputs"
    for output, *pieces in zip(whole.outputs, *(run.outputs for run in parts), strict=True):
        share = _share_of_rows(output, pieces, whole, parts)
        if share > most:
            return f"{WHERE} its output {_words(share)}"
    for gradient, *pieces in zip(whole.inputs, *(run.inputs for run in parts), strict=True):
        if any(_share(*pair, _largest(gradient)) > most for pair in _owned(gradient, pieces, parts)):
            return f"{WHERE} the gradients of its rows differ"
    least = (_SMALL if most < _FLOAT64 else _SMALL_ROUNDED) * max(map(_largest, whole.weights), default=0.0)
    for gradient, *pieces in zip(whole.weights, *(run.weights for run in parts), strict=True):
        if _share(gradient, _sum(pieces), least) > most:
            return f"{WHERE} the sum of its parameters' gradients differs"
    return ""


def first_place(whole: Run, parts: Sequence[Run], most: float) -> str:
    """Return where the first number differs: among what each module takes, and what it returns, in time; or ""."""
    for at, (place, rows) in enumerate(whole.steps):
        others = [run.steps[at] if at < len(run.steps) else ("", rows) for run in parts]
        if any(other != place for other, _ in others):
            break
        if _share_of_rows(rows, [piece for _, piece in others], whole, parts) > most:
            return place
    return ""


def is_close(one: Array, other: Array, most: float) -> bool:
    """Return whether arrays differ by at most this share of the largest number."""
    return _share(one, other, 0.0) <= most


def _share_of_rows(output: Array, pieces: list[Array], whole: Run, parts: Sequence[Run]) -> float:
    """Return the largest difference of an output as a share of its largest number; inf where shapes differ."""
    scale = _largest(output)
    indices = [run.ids.of(piece) for run, piece in zip(parts, pieces, strict=True)]
    if whole.ids.of(output) is not None and all(index is not None for index in indices):
        return max(_share(output[index], piece, scale) for index, piece in zip(indices, pieces, strict=True))
    if all(piece.shape == output.shape for piece in pieces):  # it is equal on all parts, or adds up
        return min(max(_share(output, piece, scale) for piece in pieces), _share(output, _sum(pieces), scale))
    if output.dtype.kind != "f" or all(piece.ndim and piece.shape[1:] == output.shape[1:] for piece in pieces):
        return 0.0  # numbers of rows, or other rows than one for each node: edges with loops, say, in another order
    return inf


def _owned(gradient: Array | None, pieces: list[Array | None], parts: Sequence[Run]) -> list[tuple[Any, Any]]:
    if gradient is None:
        return []
    return [(gradient[run.ids.owned], piece) for run, piece in zip(parts, pieces, strict=True)]


def _sum(pieces: Sequence[Array | None]) -> Array | None:
    present = [piece.astype(np.float64) for piece in pieces if piece is not None]
    return sum(present[1:], present[0]) if present else None


def _share(expected: Array | None, found: Array | None, scale: float) -> float:
    """Return the largest difference as a share of *scale* or a larger number; inf if shapes differ.

    What is missing is 0; what is equal is no difference, infinite or not a number.
    """
    if expected is None or found is None:
        present = expected if found is None else found
        return 0.0 if present is None else _share(np.zeros_like(present), present, max(scale, _largest(expected)))
    if expected.shape != found.shape:
        return inf
    one, other = expected.astype(np.float64), found.astype(np.float64)
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        gaps = np.where(is_same, 0.0, np.abs(one - other))
    return float(np.nan_to_num(gaps, nan=inf, posinf=inf).max(initial=0.0)) / (max(scale, _largest(one)) or 1.0)


def _largest(array: Array | None) -> float:
    """Return the largest finite absolute value; of none 0."""
    if array is None:
        return 0.0
    return float(np.abs(np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)).max(initial=0.0))


def _words(share: float) -> str:
    if share == inf:
        return "has other shapes, or is not finite"
    return f"differs by about {10.0 ** floor(log10(share)):.0e} of its largest number"
