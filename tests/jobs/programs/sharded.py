"""FSDP over a device mesh, and a distributed checkpoint that is written and read; then a call to a rank by RPC."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import rpc
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

size = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cpu", (size,))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
dcp.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
before = [weight.to_local().clone() for weight in model.parameters()]
optimizer.step()
read = {"model": model.state_dict()}
dcp.load(read, checkpoint_id=sys.argv[1])
same = all(map(torch.equal, before, (weight.to_local() for weight in read["model"].values())))
rank = dist.get_rank()
dist.destroy_process_group()

rpc.init_rpc(f"rank{rank}", rank=rank, world_size=size)
answer = rpc.rpc_sync(f"rank{(rank + 1) % size}", torch.add, args=(torch.ones(1), rank))
rpc.shutdown()
print(f"{rank}/{size} batches 1 losses {same} {answer.item() == 1 + rank}")
