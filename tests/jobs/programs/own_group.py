"""Two processes of `mp.spawn` meet by torch.distributed alone, and load a graph; thrice, at the given ports."""

import os
import sys

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import unilaunch_graph as ug


def work(rank: int, port: str, late: bool) -> None:  # noqa: FBT001  (mp.spawn gives it by its place)
    part = ug.load("sbm") if late else None
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    part = part or ug.load("sbm")
    total = ug.torch.sum_ranks(torch.tensor([1.0 + rank, part.num_owned]), part)
    sys.stdout.write(f"rank {part.rank} of {part.world_size}, the sums are {total.tolist()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    one = {"RANK": "0", "WORLD_SIZE": "1"}
    # The second time the script has set variables of one process; the last time the order is the other one.
    for port, variables, late in zip(sys.argv[1:], ({}, one, {}), (False, False, True), strict=True):
        for name in one:
            os.environ.pop(name, None)
        os.environ.update(variables)
        spawn(work, (port, late), nprocs=2)  # type: ignore[no-untyped-call]
