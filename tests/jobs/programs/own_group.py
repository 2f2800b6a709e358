"""Two processes of `mp.spawn` meet by torch.distributed alone, then load a graph; "late": in the other order."""

import sys

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import unilaunch_graph as ug


def work(rank: int, port: str) -> None:
    """Be one of the two."""
    late = "late" in sys.argv
    part = ug.load("sbm") if late else None
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    part = part or ug.load("sbm")
    total = ug.torch.sum_ranks(torch.tensor([1.0 + rank, part.num_owned]), part)
    sys.stdout.write(f"rank {part.rank} of {part.world_size}, the sums are {total.tolist()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(work, (sys.argv[1],), nprocs=2)  # type: ignore[no-untyped-call]
