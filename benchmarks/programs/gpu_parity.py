"""Compare a small GCN with dropout on a device with the host's, and print the differences as JSON. For gpu.py.

    python benchmarks/programs/gpu_parity.py PRECISION {torch,Triton} DEVICE FOLDER

beside: the largest relative difference of a loss from that of the host's network, which has float32 where PRECISION is
bfloat16. repeat: the largest difference in a second training. With Triton's kernels torch must not see the host wait in
the later epochs. FOLDER holds the graph.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

EPOCHS = 20


def main() -> None:
    """Train, compare and print."""
    precision, way, device, folder = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from graphs import make_graph

    graph = open_dataset(
        str(make_graph(Path(folder), 2000, 64)), Path(folder), None, 0, normalize_features=False
    ).load()
    part = next(split_parts(graph, order_nodes(graph, np.zeros(graph.num_nodes, np.int64), 1)))
    tensors = TorchDeviceTensors(device, is_bfloat16=precision == "bfloat16", is_fused=way == "Triton")
    if way == "Triton" and tensors.kernels is None:
        raise SystemExit("error: Triton's kernels do not start")  # a warning has said why
    expected = losses(part, "float32" if precision == "bfloat16" else precision, None)
    found = [losses(part, precision, tensors) for _ in range(2)]
    beside, repeat = np.abs(found[0] / expected - 1), np.abs(found[1] - found[0])
    print(json.dumps({"beside": float(beside.max()), "repeat": float(repeat.max())}))


def losses(part: Part, precision: str, tensors: TorchDeviceTensors | None) -> Any:
    """Return the losses of some epochs on a device; None: of the host's network."""
    spec = GcnSpec.model_validate({"precision": precision, "hidden": 32, "layers": 3, "bias": True})
    config, meter = NetworkConfig.of(spec, plan_layers(spec, part.num_features, part.num_classes), 0), Meter()
    network: Network
    if tensors is None:
        network = HostNetwork(host_problem(Alone(), 1, config, part, meter), TorchTensors())
    else:
        network = device_network(config, part, tensors, Alone(), meter)
    steps = network.steps(network.adam(spec.lr, spec.weight_decay), Alone(), meter)
    is_recorded = tensors is not None and tensors.kernels is not None
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
