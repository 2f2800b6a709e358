"""What a network gives on a small graph as a whole, and in parts: whether it is the same, and where it first is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, isnan, log10, nan, prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import UnilaunchError
from unilaunch_graph.arrays import Ids

Array: TypeAlias = NDArray[Any]

WHERE = "in three parts of a small graph"
#: Gradients of parameters below this share of the largest one are rounding: in float64, and in smaller types, where a
#: sum of terms that cancel has lost as many digits as they have in common.
_SMALL, _SMALL_ROUNDED = 1e-3, 0.1
#: No difference is known: the rows cannot be told.
_UNKNOWN = nan
_FLOAT64 = 1e-6  # the largest difference that is asked of float64 is less


class NotCheckedError(UnilaunchError):
    """`check`: the network cannot be simulated; the message says why."""


@dataclass(frozen=True, slots=True)
class RowIds:
    """Which rows of the whole graph those of a part are.

    Attributes:
        owned: Global ids of the owned nodes. (num_owned,)
        nodes: Those and the ids of the halo nodes. (num_owned + num_halo,)
        edges: The number of each edge in the whole graph. (num_edges,)
        masked: The ids that each mask among the arguments selects: the same masks in the same order in each run.
    """

    owned: Ids
    nodes: Ids
    edges: Ids
    masked: Sequence[Ids] = ()

    def kinds(self, rows: Any) -> tuple[int, ...]:
        """Return which of the lists of ids are as long as *rows*, an array or a tensor: in the whole graph, its kind.

        A part alone does not tell: a mask may select all of its nodes.
        """
        return tuple(kind for kind, ids in enumerate(self._lists()) if rows.ndim and len(ids) == len(rows))

    def of(self, rows: Any, kinds: Sequence[int]) -> Ids | None:
        """Return the ids of *rows*, in the whole graph in ascending order; None: they are no rows of these kinds."""
        lists = self._lists()
        return next((lists[kind] for kind in kinds if rows.ndim and len(lists[kind]) == len(rows)), None)

    def factors(self, rows: Any, kinds: Sequence[int]) -> Array | None:
        """Return what a loss over the first of the rows multiplies them by: each element has a weight of its own.

        Returns:
            None: they are no rows of these kinds. A row of a halo node has none: it is its owner's. (rows, ...)
        """
        index = self.of(rows, kinds)
        if index is None or not len(index):
            return None
        index = self.owned if index is self.nodes else index
        width = prod(rows.shape[1:])
        factors: Array = np.sin(1.7 * index[:, None] + np.arange(width)).reshape(-1, *rows.shape[1:])
        return factors

    def _lists(self) -> tuple[Ids, ...]:
        return (self.owned, self.nodes, self.edges, *self.masked)


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

    Raises:
        NotCheckedError: Nothing differs, and an output has rows of which nobody knows what they are of.
    """
    if any(len(run.outputs) != len(whole.outputs) for run in parts):
        return f"{WHERE} it returns another number of outputs"
    outputs = zip(whole.outputs, *(run.outputs for run in parts), strict=True)
    shares = [_share_of_rows(output, pieces, whole, parts) for output, *pieces in outputs]
    if worst := next((share for share in shares if share > most), None):
        return f"{WHERE} its output {_words(worst)}"
    for gradient, *pieces in zip(whole.inputs, *(run.inputs for run in parts), strict=True):
        if any(_share(*pair, _largest(gradient)) > most for pair in _owned(gradient, pieces, parts)):
            return f"{WHERE} the gradients of its rows differ"
    least = (_SMALL if most < _FLOAT64 else _SMALL_ROUNDED) * max(map(_largest, whole.weights), default=0.0)
    for gradient, *pieces in zip(whole.weights, *(run.weights for run in parts), strict=True):
        if _share(gradient, _sum(pieces), least) > most:
            return f"{WHERE} the sum of its parameters' gradients differs"
    if any(map(isnan, shares)):
        raise NotCheckedError(
            "an output has rows that are not those of all nodes, of all edges, or of a mask among its arguments, and "
            "the parts have another number of them than the whole"
        )
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
    """Return the largest difference of an output as a share of its largest number.

    Of other rows (edges with loops in another order, what a comparison has selected) each column's numbers are
    compared by size.

    Returns:
        inf where shapes differ; `_UNKNOWN` where the parts have another number of rows.
    """
    scale, kinds = _largest(output), whole.ids.kinds(output)
    indices = [run.ids.of(piece, kinds) for run, piece in zip(parts, pieces, strict=True)]
    ids = whole.ids.of(output, kinds)
    if ids is not None and all(index is not None for index in indices):
        places = [np.searchsorted(ids, index) for index in indices if index is not None]
        return max(_share(output[place], piece, scale) for place, piece in zip(places, pieces, strict=True))
    if all(piece.shape == output.shape for piece in pieces):  # it is equal on all parts, or adds up
        return min(max(_share(output, piece, scale) for piece in pieces), _share(output, _sum(pieces), scale))
    if output.dtype.kind != "f":
        return 0.0  # numbers of rows: each part has its own
    if not all(piece.ndim and piece.shape[1:] == output.shape[1:] for piece in pieces):
        return inf
    if sum(map(len, pieces)) != len(output):
        return _UNKNOWN
    return _share(np.sort(output, axis=0), np.sort(np.concatenate(pieces), axis=0), scale)


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
