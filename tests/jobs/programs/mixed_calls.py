"""Ranks that call different collectives over MPI: each pair must end in an error, or as the monitor sees it, in a wait.

With the name of two collectives, rank 0 calls the first and the others the second. Without, all pairs whose messages
reach each other, one after the other; and messages in pieces.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from unilaunch.errors import MixedCallsError
from unilaunch.interfaces.calls import Operation
from unilaunch.rank import current
from unilaunch.rendezvous import mpi
from unilaunch_graph.purpose import Purpose

Call = Callable[[Any], None]


def _sum(collectives: Any, size: int = 1, dtype: str = "f4", purpose: Purpose = Purpose.NONE) -> None:
    collectives.calls.purpose = purpose
    numbers = np.ones(size, dtype)
    collectives.all_reduce(numbers)
    assert (numbers == collectives.size).all()


def _swap(collectives: Any, rows: int = 2, purpose: Purpose = Purpose.NONE) -> None:
    collectives.calls.purpose = purpose
    counts = [rows * (rank != collectives.rank) for rank in range(collectives.size)]
    received = np.empty((sum(counts), 3))
    sent = np.full((sum(counts), 3), float(collectives.rank))
    collectives.exchange(sent, counts, received, counts).wait()
    assert {*received.ravel()} == {*range(collectives.size)} - {collectives.rank}


SUMS: dict[str, Call] = {
    "all_reduce": _sum,
    "sum_ranks": partial(_sum, purpose=Purpose.SUM_RANKS),
    "mean": partial(_sum, purpose=Purpose.MEAN),
    "fetch": partial(_sum, dtype="i8", purpose=Purpose.FETCH),
    "sum_gradients": partial(_sum, size=300_000, purpose=Purpose.SUM_GRADIENTS),
    "load": partial(_sum, dtype="i2", purpose=Purpose.LOAD),
    "a broadcast": lambda collectives: collectives.broadcast(np.ones(1), 0),
    "barrier": lambda collectives: collectives.barrier(),
}
SWAPS: dict[str, Call] = {
    "halo": partial(_swap, purpose=Purpose.HALO),
    "sum_halo": partial(_swap, purpose=Purpose.SUM_HALO),
    "fetch": partial(_swap, purpose=Purpose.FETCH),
    "an exchange of rows": _swap,
}


def main(collectives: Any) -> None:
    """Call what the command line says."""
    if sys.argv[1:] == ["unsaid"]:  # as between devices
        collectives.calls.purpose = Purpose(6 + collectives.rank)
        collectives.calls.begin(Operation.ALL_REDUCE)
        for _ in range(100):
            collectives.barrier()
        return
    if sys.argv[1:]:
        calls = SUMS | SWAPS | {"nothing": lambda _: None}
        calls[sys.argv[1 + (collectives.rank > 0)]](collectives)
        return
    for call in (*SUMS.values(), *SWAPS.values()):
        call(collectives)
    told = 0
    for group in (SUMS, SWAPS):
        for first, second in permutations(group, 2):
            apart = mpi.MpiCollectives(collectives.comm.Dup())  # what a pair leaves behind reaches no other
            told += _is_told(apart, group, first, second)
    wide = np.asfortranarray(np.full((3, 2), float(collectives.rank)))
    collectives.broadcast(wide, 1)
    assert (wide == 1).all()
    mpi._MOST = 64
    mpi._SMALL = 0
    for size in (1, 16, 17, 1000):
        _sum(collectives, size)
        _swap(collectives, size)
        numbers = np.full(size, float(collectives.rank))
        collectives.broadcast(numbers, 1)
        assert (numbers == 1).all()
    apart = mpi.MpiCollectives(collectives.comm.Dup())
    refused: dict[str, Call] = {
        "a broadcast": partial(_send_first, places=slice(2)),
        "barrier": partial(_send_first, places=slice(0, 4, 2)),
    }
    told += _is_told(apart, refused, "a broadcast", "barrier")
    sys.stdout.write(f"rank {collectives.rank}: {told} errors\n")


def _send_first(collectives: Any, places: slice) -> None:
    """Broadcast some of four numbers, then meet: an array with gaps is refused before the others hear of it."""
    with suppress(ValueError):
        collectives.broadcast(np.ones(4)[places], 0)
    collectives.barrier()


def _is_told(collectives: Any, group: dict[str, Call], first: str, second: str) -> bool:
    """Return whether the ranks' errors name both calls."""
    errors = []
    try:
        group[second if collectives.rank else first](collectives)
    except MixedCallsError as error:
        errors = [str(error)]
    of_all = collectives.comm.allgather(errors)  # MPI goes on to send what the other rank awaits
    is_told = all(f"rank {rank} is at {name} (" in str(of_all) for rank, name in enumerate((first, second)))
    assert is_told, (first, second, of_all)
    return is_told


if __name__ == "__main__":
    kept = current.join().collectives()  # until the process ends, as ug keeps them
    main(kept)
