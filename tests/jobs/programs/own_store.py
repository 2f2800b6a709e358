"""A program that meets at an address of its own, through mpi4py; told `spawn`, again in processes that it spawns."""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn  # type: ignore[attr-defined]


def meet(rank: int, size: int, port: int) -> int:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo")
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)


def child(rank: int, port: int) -> None:
    assert meet(rank, 2, port) == 3


if __name__ == "__main__":
    from mpi4py import MPI  # the spawned processes import this file too, and MPI is not theirs

    comm, held = MPI.COMM_WORLD, [socket.socket(), socket.socket()]
    for one in held:  # the kernel assigns its port to nobody else, though a store may listen there
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    first, second = (one.getsockname()[1] for one in held)
    total = meet(comm.rank, comm.size, comm.bcast(first))
    if comm.rank == 0 and "spawn" in sys.argv:
        spawn(child, (second,), nprocs=2)  # type: ignore[no-untyped-call]
    sys.stdout.write(f"sum {total}, threads {MPI.Query_thread() == MPI.THREAD_MULTIPLE}\n")
