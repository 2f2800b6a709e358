"""The least time that an epoch of epoch.py's training can take on this machine; print it, in seconds. For epoch.py.

Its products' flops at the rate of torch's product of the same shapes, on two threads, and the bytes of all rows that
the products, aggregations and activations read and write once, with the edges' columns, at the rate of copying memory.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch

NODES, EDGES, WIDTHS = 100_000, 4_512_000, (300, 128, 128, 40)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(2)
    dense = 0.0
    for depth, (width_in, width_out) in enumerate(pairwise(WIDTHS)):
        rows, weight, out = torch.rand(NODES, width_in), torch.rand(width_in, width_out), torch.rand(NODES, width_out)
        dense += _seconds(rows, weight) + _seconds(rows.T, out)
        dense += _seconds(out, weight.T) if depth else 0.0
    large = torch.rand(64 << 20)
    copy = _median(large.clone) / (2 * large.nbytes)
    moved = sum(
        4 * (NODES * (8 * width_out) + (4 * NODES * width_out + 2 * EDGES if depth else 0))
        for depth, width_out in enumerate(WIDTHS[1:])
    )
    print(dense + moved * copy)


def _seconds(first: torch.Tensor, second: torch.Tensor) -> float:
    return _median(partial(torch.matmul, first, second))


def _median(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(7):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
