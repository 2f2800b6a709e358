"""A training script as people write it for torchrun; nothing in it knows unilaunch."""

import argparse
import os
import pickle
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Batch:
    def __init__(self, rank: int) -> None:
        self.rows = torch.ones(8, 4) * (rank + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--local-rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    batch = pickle.loads(pickle.dumps(Batch(rank)))  # noqa: S301
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch.rows).square().mean().backward()
        optimizer.step()
    weight, bias = (parameter.detach().sum().item() for parameter in model.parameters())
    elastic = dist.is_torchelastic_launched()
    sys.stdout.write(f"{rank}/{size} local {options.local_rank} elastic {elastic} {weight:.6f} {bias:.6f}\n")
    sys.stdout.write(f"{rank} path {sys.path[0]} argv {sys.argv[0]} file {__file__}\n")
    dist.destroy_process_group()
