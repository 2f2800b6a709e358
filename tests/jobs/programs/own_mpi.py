"""A program that initialises and ends MPI itself, as mpi4py's own demos do."""

import sys

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402  (after its settings)

assert not MPI.Is_initialized()
assert MPI.Init_thread(MPI.THREAD_MULTIPLE) == MPI.THREAD_MULTIPLE
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)
MPI.Finalize()
sys.stdout.write(f"sum {total}\n")
