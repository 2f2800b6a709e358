"""From a part to this backend's network: ours for torch and mindspore, or the one that another backend brings."""

import numpy as np

from unilaunch.backend import Collectives, Placement
from unilaunch.errors import SpecError
from unilaunch.model import Framework
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.network import Network, Problem
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_graph.exchange.approximate import RoughHalo, SampledHalo, StaleHalo
from unilaunch_graph.exchange.column_switch import ColumnSwitch
from unilaunch_graph.exchange.halo import Halo, HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import BFloat16, Exact, Int8
from unilaunch_graph.operators.aggregation import Aggregation, Aggregator
from unilaunch_graph.operators.malloc import keep_freed_memory
from unilaunch_graph.operators.tensor_parallel import TensorAggregation
from unilaunch_graph.partition.part import Part


def load_network(
    framework: Framework, placement: Placement, config: NetworkConfig, part: Part, meter: Meter
) -> Network:
    """Return the network of the framework on this rank's device; all ranks must call it.

    Raises:
        SpecError: The framework has no GCN on this device.
    """
    if placement.device != "cpu":
        _refuse_on_devices(placement.device, config)
    backend, collectives = framework.backend.name, framework.collectives
    if backend == "torch":
        from unilaunch_gcn import torch_network

        if placement.device != "cpu":
            return torch_network.TorchDeviceNetwork(config, part, collectives, meter, str(placement))
        return torch_network.TorchNetwork(host_problem(collectives, placement.threads, config, part, meter))
    if backend == "mindspore" and placement.device != "cuda":
        from unilaunch_gcn import mindspore_network

        if placement.device == "npu":
            return mindspore_network.MindSporeDeviceNetwork(config, part, collectives, meter)
        return mindspore_network.MindSporeNetwork(host_problem(collectives, placement.threads, config, part, meter))
    make_network = framework.backend.network("gcn")
    if make_network and placement.device == "cpu":
        network: Network = make_network(host_problem(collectives, placement.threads, config, part, meter))
        return network
    raise SpecError(
        f"--backend {backend} --device {placement.device}: the model gcn runs on torch (cpu, cuda, npu), on "
        "mindspore (cpu, npu; on cuda MindSpore has no variable all-to-all), and on cpu on any other backend with a "
        "network for it"
    )


def _refuse_on_devices(device: str, config: NetworkConfig) -> None:
    if config.halo != "exact":
        raise SpecError(f"--halo {config.halo} --device {device}: on a device the halo is exact; expected --halo exact")


def make_halo(config: NetworkConfig, part: Part, collectives: Collectives, meter: Meter) -> Halo:
    """Return the way to the halo rows that the user chose."""
    if config.halo == "stale":
        return StaleHalo(part, collectives, meter)
    exact = HaloExchange(part, collectives, meter, BFloat16() if config.is_bfloat16 else Exact())
    if config.halo.startswith("sample:"):
        return SampledHalo(exact, part, float(config.halo.partition(":")[2]), config.seed, config.dtype)
    if config.halo == "int8":
        draw = np.random.Generator(np.random.Philox(key=config.seed, counter=[0, 0, 1, part.index]))
        return RoughHalo(exact, HaloExchange(part, collectives, meter, Int8(draw)))
    return exact


def host_problem(collectives: Collectives, threads: int, config: NetworkConfig, part: Part, meter: Meter) -> Problem:
    """Return the operators on host arrays that both frameworks share."""
    keep_freed_memory()
    aggregate: Aggregator
    if part.adjacency:
        switch = ColumnSwitch(part, part.adjacency, collectives, meter)
        aggregate = TensorAggregation(part, switch, threads, config.conv, config.dtype)
    else:
        aggregate = Aggregation(part, make_halo(config, part, collectives, meter), threads, config.conv, config.dtype)
    return Problem(config, part, aggregate, Inputs(config, part, aggregate))
