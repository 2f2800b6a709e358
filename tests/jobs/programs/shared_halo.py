"""Rows between processes through memory that they share; the same rows by messages."""

import sys

import numpy as np
from mpi4py import MPI

from unilaunch.rendezvous.mpi import MpiCollectives
from unilaunch_graph.exchange.shared_memory import share_buffers

world = MPI.COMM_WORLD
collectives, counts = MpiCollectives(world), [world.rank + 1] * world.size
arriving = [rank + 1 for rank in range(world.size)]
shared = share_buffers(collectives, counts, arriving)
assert shared is not None, "the ranks of one host share no memory"
for turn in range(200):
    width = 1 + turn % 7 * 300
    received, places = shared.next(width, np.float64)
    for receiver, place in places:
        place[...] = turn * 100 + world.rank * 10 + receiver
    shared.written().wait()
    expected = np.repeat(turn * 100 + np.arange(world.size) * 10 + world.rank, arriving)
    assert (received == expected[:, None]).all(), (turn, received[:, 0])
sys.stdout.write(f"rank {world.rank}: 200 exchanges\n")
