"""Kernels of an NVIDIA GPU in Triton: the row-split sparse product with what follows it, portable dropout, Adam.

A program sums the entries of one row, in the order of the entries and without atomics, so that a repeat gives the same
bits. Sums are float32; of float64 rows they are float64. Rows and results may be bfloat16. A dropout mask is never
stored: it is hashed where it is needed, forward and backward, with the bits of `unilaunch_graph.dropout`.

Never run on a GPU. The tests run the kernels in Triton's interpreter, on tensors of the host, and compile them for one.
"""

from typing import Any

import triton
import triton.language as tl

from unilaunch_gcn.aggregation import ONES, DiagonalScaling
from unilaunch_gcn.device import Dropout, Epilogue
from unilaunch_graph.optimizer import BETA1, BETA2, EPSILON

#: Entries of a row that are gathered at a time; rows of an elementwise pass; columns of a program at most.
_TILE, _ROWS, _COLUMNS = 16, 8, 128
#: Weights of one program of Adam.
_WEIGHTS = 1024
#: Multiply and add at once. Triton 3.9 warns where this is not said, and 3.10 has another default.
_COMPILED = {"enable_fp_fusion": True}
_NO_SCALING = DiagonalScaling(None, None, None)


@triton.jit
def _mix(words):
    """Hash 32-bit words as `dropout.mix` does."""
    words ^= words >> 16
    words *= 0x7FEB352D
    words ^= words >> 15
    words *= 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def _row_keys(nodes, keys):
    low, high = nodes.to(tl.uint32), (nodes >> 32).to(tl.uint32)
    return _mix(low ^ _mix(high ^ tl.load(keys).to(tl.uint32)))


@triton.jit
def _column_keys(columns, keys):
    return _mix(columns.to(tl.uint32) + tl.load(keys + 1).to(tl.uint32))


@triton.jit
def _factors(
    values, entry, is_entry, row, source, nodes, keys,
    DROPS: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, SUM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Return what the rows that some entries gather are multiplied by: the entries' values, dropped out."""
    factor = tl.full((TILE,), 1, SUM)
    if values is not None:
        factor = tl.load(values + entry, mask=is_entry, other=0).to(SUM)
    if DROPS == "rows":
        words = _mix(_row_keys(tl.load(nodes + row), keys) ^ _column_keys(source, keys))
        factor = tl.where(words >= LEAST, factor * SCALE, 0)
    if DROPS == "columns":
        node = tl.load(nodes + source, mask=is_entry, other=0)
        words = _mix(_row_keys(node, keys) ^ _column_keys(row, keys))
        factor = tl.where(words >= LEAST, factor * SCALE, 0)
    return factor


@triton.jit
def _gathered_sum(
    indptr, indices, values, rows, right, nodes, keys, row, column, width,
    DROPS: tl.constexpr, ENTRIES: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, SUM: tl.constexpr,
    TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return some columns of one row of W right @ rows."""
    end = tl.load(indptr + row + 1)
    total = tl.zeros((COLUMNS,), SUM)
    for first in range(tl.load(indptr + row), end, TILE):
        entry = first + tl.arange(0, TILE)
        is_entry = entry < end
        source = tl.load(indices + entry, mask=is_entry, other=0).to(tl.int64)
        place = source[:, None] * width + column[None, :]
        gathered = tl.load(rows + place, mask=is_entry[:, None] & (column < width)[None, :], other=0).to(SUM)
        if values is not None or ENTRIES:
            gathered *= _factors(
                values, entry, is_entry, row, source, nodes, keys, DROPS, LEAST, SCALE, SUM, TILE
            )[:, None]  # fmt: skip
        if right is not None:
            gathered *= tl.load(right + source, mask=is_entry, other=0)[:, None]
        total += tl.sum(gathered, 0)
    return total


@triton.jit
def _product(
    indptr, indices, values, rows, right, partial, loops, left, plus, bias, nodes, keys, out, width,
    LOOPS_ARE_ONE: tl.constexpr, RELU: tl.constexpr, DROPS: tl.constexpr, ENTRIES: tl.constexpr, LEAST: tl.constexpr,
    SCALE: tl.constexpr, SUM: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store some columns of one row of epilogue(left ((W + loops) right @ rows + partial)).

    DROPS says what dropout is of: "" nothing, "out" the result; with ENTRIES, entries of W, whose "rows" or "columns"
    are nodes.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside, place = column < width, row * width + column
    total = _gathered_sum(
        indptr, indices, values, rows, right, nodes, keys, row, column, width, DROPS, ENTRIES, LEAST, SCALE, SUM,
        TILE, COLUMNS,
    )  # fmt: skip
    if LOOPS_ARE_ONE or loops is not None:
        own = tl.load(rows + place, mask=inside).to(SUM)
        if right is not None:
            own *= tl.load(right + row)
        if loops is not None:
            own *= tl.load(loops + row)
        total += own
    if partial is not None:
        total += tl.load(partial + place, mask=inside)
    if left is not None:
        total *= tl.load(left + row)
    if plus is not None:
        total += tl.load(plus + place, mask=inside).to(SUM)
    if bias is not None:
        total += tl.load(bias + column, mask=inside)
    if RELU:
        total = tl.where(total < 0, 0, total)  # keeps NaN, as torch's ReLU does
    if DROPS == "out":
        words = _mix(_row_keys(tl.load(nodes + row), keys) ^ _column_keys(column, keys))
        total = tl.where(words >= LEAST, total * SCALE, 0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _elementwise(
    rows, plus, bias, after, nodes, keys, out, num_rows, width,
    RELU: tl.constexpr, DROPS: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, SUM: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store the epilogue of a block of rows; or, with *after*, the gradient before a ReLU with or without dropout.

    *after* is what came of both. It is positive only where neither the ReLU nor the dropout made it 0.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < num_rows)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    numbers = tl.load(rows + place, mask=inside).to(SUM)
    if plus is not None:
        numbers += tl.load(plus + place, mask=inside).to(SUM)
    if bias is not None:
        numbers += tl.load(bias + column, mask=column < width)[None, :]
    if RELU:
        numbers = tl.where(numbers < 0, 0, numbers)
    if after is not None:
        numbers = tl.where(tl.load(after + place, mask=inside) > 0, numbers * SCALE, 0)
    if DROPS:
        keyed = _row_keys(tl.load(nodes + row, mask=row < num_rows, other=0), keys)
        words = _mix(keyed[:, None] ^ _column_keys(column, keys)[None, :])
        numbers = tl.where(words >= LEAST, numbers * SCALE, 0)
    tl.store(out + place, numbers.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _adam(
    weights, first, second, gradient, powers, size, decayed,
    LR: tl.constexpr, DECAY: tl.constexpr, BETA_1: tl.constexpr, BETA_2: tl.constexpr, TINY: tl.constexpr,
    WEIGHTS: tl.constexpr,
):  # fmt: skip
    """Take one step of `optimizer.Adam`; *powers* holds BETA_1 and BETA_2 to the number of steps, in float64."""
    place = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    inside = place < size
    weight = tl.load(weights + place, mask=inside)
    slope = tl.load(gradient + place, mask=inside).to(weight.dtype)
    slope += tl.where(place < decayed, weight * DECAY, 0)
    mean = tl.load(first + place, mask=inside) * BETA_1 + slope * (1 - BETA_1)
    square = tl.load(second + place, mask=inside) * BETA_2 + slope * slope * (1 - BETA_2)
    rate = (LR / (1 - tl.load(powers))).to(weight.dtype)
    root = tl.sqrt(square) / tl.sqrt(1 - tl.load(powers + 1)).to(weight.dtype)
    tl.store(first + place, mean, mask=inside)
    tl.store(second + place, square, mask=inside)
    tl.store(weights + place, weight - rate * mean / (root + TINY), mask=inside)


def multiply(
    matrix: Any, rows: Any, out: Any, *, scaling: DiagonalScaling = _NO_SCALING, partial: Any = None,
    epilogue: Epilogue | None = None, entries: tuple[str, Dropout] | None = None,
) -> Any:  # fmt: skip
    """Return *out* after epilogue(left ((W + loops) right @ rows + partial)) was written into it.

    Args:
        matrix: W. Has indptr, indices and values as tensors; values None: each is 1.
        rows: (columns of W, width) float32, float64 or bfloat16, contiguous
        out: (rows of W, width), contiguous
        scaling: left, right and loops, in the type of the sums.
        partial: What other columns have added, loops among them. (rows of W, width), in the type of the sums
        epilogue: What becomes of the sums; None stores them.
        entries: Which side of W has nodes ("rows" or "columns"), and dropout of W's entries. *epilogue* then has none.
    """
    epilogue = epilogue or Epilogue()
    kind, dropout = entries or ("out" if epilogue.dropout else "", epilogue.dropout)
    are_ones, columns = scaling.loops is ONES, _columns(out.shape[1])
    if out.numel():
        _product[out.shape[0], triton.cdiv(out.shape[1], columns)](
            matrix.indptr, matrix.indices, matrix.values, rows, scaling.right, partial,
            None if are_ones else scaling.loops, scaling.left, epilogue.plus, epilogue.bias, *_tensors(dropout), out,
            out.shape[1], LOOPS_ARE_ONE=are_ones, RELU=epilogue.relu, DROPS=kind, ENTRIES=entries is not None,
            **_constants(dropout), SUM=_sum_type(rows), TILE=_TILE, COLUMNS=columns, num_warps=1, **_COMPILED,
        )  # fmt: skip
    return out


def apply(epilogue: Epilogue, rows: Any, out: Any) -> Any:
    """Return *out* after the epilogue of *rows* was written into it. Both (rows, width), contiguous."""
    return _pass(rows, out, epilogue, None, epilogue.dropout)


def gradient(epilogue: Epilogue, after: Any, rows: Any) -> Any:
    """Return the gradient by what an epilogue was given, from the gradient by what it returned.

    Args:
        epilogue: The epilogue.
        after: What it returned; needed if it has a ReLU. (rows, width)
        rows: The gradient. (rows, width), contiguous
    """
    if not (epilogue.relu or epilogue.dropout):
        return rows
    return _pass(rows, rows.new_empty(rows.shape), Epilogue(), after if epilogue.relu else None, epilogue.dropout)


def adam_step(
    weights: Any, moments: tuple[Any, Any], gradient: Any, powers: Any, options: tuple[float, float, int]
) -> None:
    """Take one step of `optimizer.Adam` in one pass.

    Args:
        weights: Changed in place. (num_weights,)
        moments: Both moments, changed in place. (num_weights,) each
        gradient: (num_weights,)
        powers: 0.9 and 0.999, each to the number of this step. (2,) float64
        options: Step size, L2 factor, and how many weights, from the front, the L2 factor is for.
    """
    size, (lr, decay, decayed) = weights.shape[0], options
    _adam[(triton.cdiv(size, _WEIGHTS),)](
        weights, *moments, gradient, powers, size, decayed, LR=lr, DECAY=decay, BETA_1=BETA1, BETA_2=BETA2,
        TINY=EPSILON, WEIGHTS=_WEIGHTS, **_COMPILED,
    )  # fmt: skip


def _pass(rows: Any, out: Any, epilogue: Epilogue, after: Any, dropout: Dropout | None) -> Any:
    columns = _columns(rows.shape[1])
    if out.numel():
        _elementwise[triton.cdiv(rows.shape[0], _ROWS), triton.cdiv(rows.shape[1], columns)](
            rows, epilogue.plus, epilogue.bias, after, *_tensors(dropout), out, rows.shape[0], rows.shape[1],
            RELU=epilogue.relu, DROPS=dropout is not None and after is None, **_constants(dropout),
            SUM=_sum_type(rows), ROWS=_ROWS, COLUMNS=columns, **_COMPILED,
        )  # fmt: skip
    return out


def _columns(width: int) -> int:
    columns: int = min(_COLUMNS, triton.next_power_of_2(width))
    return columns


def _sum_type(rows: Any) -> Any:
    return tl.float64 if rows.element_size() == 8 else tl.float32  # noqa: PLR2004  (bytes of a float64)


def _tensors(dropout: Dropout | None) -> tuple[Any, Any]:
    return (dropout.nodes, dropout.keys) if dropout else (None, None)


def _constants(dropout: Dropout | None) -> dict[str, Any]:
    return {"LEAST": dropout.least, "SCALE": dropout.scale} if dropout else {"LEAST": 0, "SCALE": 1.0}
