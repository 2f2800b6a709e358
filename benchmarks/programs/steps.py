"""Train forever, one step each 10 ms, and note the time of each rank's first step after a start: for restart.py."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # noqa: TID251
gradient = torch.ones(1000)
while True:
    dist.all_reduce(gradient)
    note = Path(sys.argv[1], f"step.{attempt}.{rank}")
    if not note.exists():
        aside = note.with_name(f"aside.{rank}")
        aside.write_text(str(time.time()))
        aside.rename(note)
    if attempt != "0" and Path(sys.argv[1], "end").exists():
        break
    time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
