"""Compare a small GCN or SAGE with dropout on a device with the host's, and print the differences as JSON. For gpu.py.

    python benchmarks/programs/gpu_parity.py PRECISION {torch,Triton} DEVICE FOLDER [{gcn,sage}]
    unilaunch launch -n 2 --device cpu benchmarks/programs/gpu_parity.py ...

Several ranks share the device: they divide the graph, and exchange over gloo. NCCL wants a device for each rank.
beside: the largest relative difference of a loss from that of the host's network, which has float32 where PRECISION is
bfloat16. repeat: the largest difference in a second training. With Triton's kernels torch must not see the host wait in
the later epochs of one rank, which are a CUDA graph; gloo's steps make the host wait. FOLDER holds the graph.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist

from unilaunch.interfaces.backend import Collectives, TensorCollectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import DeviceSteps, TorchDeviceNetwork, TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

EPOCHS = 20


def main() -> None:
    """Train, compare and print."""
    precision, way, device, folder, conv = (*sys.argv[1:], "gcn")[:5]
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from graphs import make_graph

    size = int(os.environ.get("WORLD_SIZE", "1"))  # noqa: TID251  (of a script's rank)
    if size > 1:
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), TensorCollectives(dist)) if size > 1 else (0, Alone())
    own = Path(folder, f"rank.{rank}") if size > 1 else Path(folder)
    graph = open_dataset(str(make_graph(own, 2000, 64)), own, None, 0, normalize_features=False).load()
    whole, divided = (
        list(split_parts(graph, order_nodes(graph, np.arange(graph.num_nodes) % parts, parts))) for parts in (1, size)
    )
    tensors = TorchDeviceTensors(device, is_bfloat16=precision == "bfloat16", is_fused=way == "Triton")
    if way == "Triton" and tensors.kernels is None:
        raise SystemExit("error: Triton's kernels do not start")  # a warning has said why
    expected = losses(whole[0], _spec(conv, "float32" if precision == "bfloat16" else precision), None, Alone())
    found = [losses(divided[rank], _spec(conv, precision), tensors, ranks) for _ in range(2)]
    beside, repeat = np.abs(found[0] / expected - 1), np.abs(found[1] - found[0])
    if rank == 0:
        named = {"parity": conv, "precision": precision, "way": way, "device": device, "ranks": size}
        print(json.dumps({**named, "beside": float(beside.max()), "repeat": float(repeat.max())}))
    if size > 1:
        dist.destroy_process_group()


def _spec(conv: str, precision: str) -> GcnSpec:
    wanted = {"conv": conv, "precision": precision, "hidden": 32, "layers": 3, "bias": True}
    return GcnSpec.model_validate(wanted)


def losses(part: Part, spec: GcnSpec, tensors: TorchDeviceTensors | None, ranks: Collectives) -> Any:
    """Return the losses of some epochs on a device; with *tensors* None, of the host's network."""
    config, meter = NetworkConfig.of(spec, plan_layers(spec, part.num_features, part.num_classes), 0), Meter()
    network: Network
    if tensors is None:
        network = HostNetwork(host_problem(Alone(), 1, config, part, meter), TorchTensors())
    else:
        network = device_network(config, part, tensors, ranks, meter)
    adam = network.adam(spec.lr, spec.weight_decay)
    is_recorded = tensors is not None and tensors.kernels is not None and isinstance(ranks, Alone)
    if tensors is None or is_recorded:
        steps = network.steps(adam, ranks, meter)
    else:
        steps = DeviceSteps(cast("TorchDeviceNetwork", network), adam, ranks, meter, record=None)
    taken = []
    for epoch in range(EPOCHS):
        with no_waiting() if is_recorded and epoch > EPOCHS // 2 else nullcontext():
            taken += steps.take(epoch, stop=False)
    return np.array([figures.loss for figures in taken + steps.finish()])


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let torch raise where the host would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main()
