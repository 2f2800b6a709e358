"""A script that asks who it is and adds up a number over the ranks; with "fail", rank 0 fails while the others wait."""

import sys
from pathlib import Path

import numpy as np

import unilaunch
from unilaunch.rank import current

world = unilaunch.init()
collectives = current.join().collectives()
total = np.full(3, world.rank + 1.0)
collectives.all_reduce(total)
sys.stdout.write(f"{world.rank}/{world.size} on {world.device} by {type(collectives).__name__}: {total.sum()}\n")
sys.stdout.flush()
if "fail" in sys.argv:
    if world.rank == 0:
        Path("failed").touch()
        raise SystemError("boom")
    collectives.all_reduce(total)
if "mpi" in sys.argv:
    from mpi4py import MPI

    sys.stdout.write(f"MPI counts {MPI.COMM_WORLD.allreduce(1)}\n")
