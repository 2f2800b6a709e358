"""Ranks that meet in a collective again and again; rank 1 is late. Rank 0 ends it once a file says so."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
until = time.monotonic() + 60
while True:
    time.sleep(0.032 if rank == 1 else 0.02)
    over = torch.zeros(1)
    if rank == 0 and (Path(sys.argv[1]).exists() or time.monotonic() > until):
        over += 1
    dist.all_reduce(over)
    if over:
        break
