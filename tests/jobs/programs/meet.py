"""A script as people write it for torchrun, without DistributedDataParallel, which imports as much as torch itself."""

import argparse
import os
import sys

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--local-rank", type=int, default=int(os.environ["LOCAL_RANK"]))
options = parser.parse_args()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
weight = torch.full((1000,), float(rank + 5))
dist.broadcast(weight, 0)
gradient = torch.ones(1000) * (rank + 1)
dist.all_reduce(gradient)
weight -= options.lr * gradient / size
place = f"{os.environ['MASTER_ADDR']} {os.environ.get('GLOO_SOCKET_IFNAME')}"
elastic = dist.is_torchelastic_launched()
line = f"{rank}/{size} local {options.local_rank} elastic {elastic} {weight[0]:.6f} {weight[-1]:.6f} {place}\n"
sys.stdout.write(line)
dist.destroy_process_group()
