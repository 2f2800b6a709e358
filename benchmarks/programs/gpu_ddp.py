"""A training script for torchrun, with DistributedDataParallel; nothing in it knows unilaunch. For gpu_jobs.py.

gpu_ddp.py [--share]

On a GPU it meets by NCCL, on device LOCAL_RANK; with --share all ranks take the first GPU, over gloo. Without a GPU it
meets by gloo on the CPU. Each rank prints where it was, and the sum of its weights, which is that of every rank.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train three steps."""
    shares, has_gpu = "--share" in sys.argv, torch.cuda.is_available()
    device = torch.device("cuda", 0 if shares else int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")  # noqa: TID251
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if shares or not has_gpu else "nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.linspace(0, 1, 32, device=device).view(8, 4) + dist.get_rank()
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(model(rows).square().mean())
        optimizer.step()
    weights = sum(parameter.detach().sum().item() for parameter in model.parameters())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} {device} {dist.get_backend()} {weights:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
