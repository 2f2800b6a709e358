"""The same as people write it for mpirun: Open MPI's variables turned into torch's by hand."""

import os
import sys
import time

import torch.distributed as dist

os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]  # noqa: TID251
os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]  # noqa: TID251
os.environ["MASTER_ADDR"] = "127.0.0.1"  # noqa: TID251
os.environ["MASTER_PORT"] = sys.argv[1]  # noqa: TID251
dist.init_process_group("gloo")
dist.barrier()
sys.stdout.write(f"PAST {time.monotonic()}\n")
sys.stdout.flush()
dist.destroy_process_group()
