"""The least time that an epoch of epoch.py's training can take on this machine; print it, in seconds. For epoch.py.

    python benchmarks/floor.py NODES EDGES

Flops of the dense products at the rate of torch's best product here, and each array that a step reads or writes, once,
at the rate of copying memory; on two threads. A row that an aggregation gathers again and again counts once.
"""

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import torch

WIDTHS = (300, 128, 128, 40)


def main() -> None:
    """Measure and print."""
    nodes, edges = map(int, sys.argv[1:])
    torch.set_num_threads(2)
    square = torch.rand(3072, 3072)
    flops_per_second = 2 * len(square) ** 3 / _median(lambda: square @ square)
    large, other = torch.rand(64 << 20), torch.rand(64 << 20)
    bytes_per_second = 2 * large.nbytes / _median(lambda: other.copy_(large))
    flops = numbers = 0
    for depth, (width_in, width_out) in enumerate(pairwise(WIDTHS)):
        entering, leaving = nodes * width_in, nodes * width_out
        products = 3 if depth else 2  # rows @ W, rows.T @ gradient, gradient @ W.T
        flops += products * 2 * entering * width_out
        numbers += products * (entering + leaving)
        if depth:
            numbers += 2 * (2 * leaving + edges)  # aggregations, forward and backward
        numbers += 5 * leaving if depth < 2 else 2 * leaving  # ReLU and its gradient, or the loss
    print(flops / flops_per_second + 4 * numbers / bytes_per_second)


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
