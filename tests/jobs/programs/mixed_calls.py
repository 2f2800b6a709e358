"""Ranks that call different collectives: mixed_calls.py FIRST SECOND, rank 0 the first and rank 1 the second.

Or "unsaid": calls that differ, and no message tells of them; or "pieces": messages that are too large for one.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from unilaunch.interfaces.calls import Operation
from unilaunch.rank import current
from unilaunch.rendezvous import mpi
from unilaunch_graph.purpose import Purpose

ranks: Any = current.join().collectives()  # until the process ends, as ug keeps them


def add(size: int = 1, dtype: str = "f4", purpose: Purpose = Purpose.NONE) -> None:
    ranks.calls.purpose = purpose
    numbers = np.ones(size, dtype)
    ranks.all_reduce(numbers)
    assert (numbers == ranks.size).all()


def swap(rows: int = 2, purpose: Purpose = Purpose.NONE) -> None:
    ranks.calls.purpose = purpose
    counts = [rows * (rank != ranks.rank) for rank in range(ranks.size)]
    received = np.empty((sum(counts), 3))
    ranks.exchange(np.full((sum(counts), 3), float(ranks.rank)), counts, received, counts).wait()
    assert {*received.ravel()} == {*range(ranks.size)} - {ranks.rank}


def unsaid() -> None:  # as between devices
    ranks.calls.purpose = Purpose(6 + ranks.rank)
    ranks.calls.begin(Operation.ALL_REDUCE)
    for _ in range(100):
        ranks.barrier()


def pieces() -> None:
    mpi._MOST, mpi._SMALL = 64, 0
    for shape in (1, 16, 17, 1000, (3, 2)):
        numbers = np.full(shape, float(ranks.rank), order="F")
        add(numbers.size)
        swap(numbers.size)
        ranks.broadcast(numbers, 1)
        assert (numbers == 1).all()


CALLS: dict[str, Callable[[], None]] = {
    "sum_ranks": partial(add, purpose=Purpose.SUM_RANKS),
    "mean": partial(add, purpose=Purpose.MEAN),
    "sum_gradients": partial(add, size=300_000, purpose=Purpose.SUM_GRADIENTS),
    "load": partial(add, dtype="i2", purpose=Purpose.LOAD),
    "a broadcast": lambda: ranks.broadcast(np.ones(1), 0),
    "barrier": ranks.barrier,
    "halo": partial(swap, purpose=Purpose.HALO),
    "sum_halo": partial(swap, purpose=Purpose.SUM_HALO),
    "nothing": lambda: None,
    "unsaid": unsaid,
    "pieces": pieces,
}
CALLS[sys.argv[1:][ranks.rank % len(sys.argv[1:])]]()
