"""A program that starts two processes by MPI_Comm_spawn and adds up the ranks of both worlds."""

import sys

from mpi4py import MPI

parent = MPI.Comm.Get_parent()
others = parent if parent != MPI.COMM_NULL else MPI.COMM_WORLD.Spawn(sys.executable, [__file__], maxprocs=2)
together = others.Merge(high=parent != MPI.COMM_NULL)
total = together.allreduce(together.rank)
if parent == MPI.COMM_NULL:
    sys.stdout.write(f"sum {total}\n")
together.Free()
others.Disconnect()
