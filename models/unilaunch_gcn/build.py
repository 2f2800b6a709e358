"""From a part to this backend's network: ours for torch and mindspore, or the one that another backend brings."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from unilaunch.errors import SpecError
from unilaunch.interfaces.backend import Backend, Collectives, Placement
from unilaunch.interfaces.model import Framework
from unilaunch_gcn.aggregation import Aggregation, DiagonalScaling
from unilaunch_gcn.attention import GraphAttention
from unilaunch_gcn.column_switch import ColumnSwitch
from unilaunch_gcn.device import edges_on_device
from unilaunch_gcn.device_network import DeviceNetwork
from unilaunch_gcn.first_layer import FirstLayer
from unilaunch_gcn.host import aggregation_over_columns, aggregation_over_halo, kernels_of
from unilaunch_gcn.host_network import HostNetwork, Problem
from unilaunch_gcn.malloc import keep_freed_memory
from unilaunch_gcn.network import Network
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.objective import objective_of
from unilaunch_gcn.pruning import prune
from unilaunch_gcn.tensors import DeviceTensors, Tensors
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import BFloat16, Exact
from unilaunch_graph.kernels.choice import choose_products
from unilaunch_graph.partition.part import Part

if TYPE_CHECKING:
    from unilaunch_gcn.torch_device_tensors import TorchDeviceTensors


def load_network(
    framework: Framework, placement: Placement, config: NetworkConfig, part: Part, meter: Meter
) -> Network:
    """Return the network of the framework on this rank's device; all ranks must call it.

    Raises:
        SpecError: The framework has no GCN on this device.
    """
    tensors = _tensors(framework.backend, placement, config)
    if isinstance(tensors, DeviceTensors):
        return device_network(config, part, tensors, framework.collectives, meter)
    return HostNetwork(training_problem(framework.collectives, placement.threads, config, part, meter), tensors)


def device_network(
    config: NetworkConfig, part: Part, tensors: DeviceTensors, collectives: Collectives, meter: Meter
) -> DeviceNetwork:
    """Return the network on a device, over collectives on the device's tensors; all ranks must call it."""
    tensors.agree(collectives)
    meter.watch = tensors.watch()
    edges = edges_on_device(part, config.dtype, tensors, collectives, meter)
    aggregate = Aggregation(edges, DiagonalScaling.of(part, config.conv, config.dtype, tensors.tensor))
    if tensors.framework == "torch":
        from unilaunch_gcn.torch_device_network import TorchDeviceNetwork

        return TorchDeviceNetwork(config, part, objective_of(part), cast("TorchDeviceTensors", tensors), aggregate)
    return DeviceNetwork(config, part, objective_of(part), tensors, aggregate)


def _tensors(backend: Backend, placement: Placement, config: NetworkConfig) -> Tensors:
    """Return the framework: ours for torch and mindspore, or what another backend brings for the GCN on cpu."""
    name, device, is_bfloat16 = backend.name, placement.device, config.is_bfloat16
    if name == "torch":
        if device == "cpu":
            from unilaunch_gcn.torch_tensors import TorchTensors

            return TorchTensors(is_bfloat16=is_bfloat16)
        from unilaunch_gcn.torch_device_tensors import TorchDeviceTensors

        return TorchDeviceTensors(str(placement), is_bfloat16=is_bfloat16)
    if name == "mindspore" and device != "cuda":
        from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors

        return (MindSporeTensors if device == "cpu" else MindSporeDeviceTensors)(is_bfloat16=is_bfloat16)
    make_tensors = backend.network("gcn")
    if make_tensors and device == "cpu":
        tensors: Tensors = make_tensors(config)
        return tensors
    raise SpecError(
        f"--backend {name} --device {device}: the model gcn runs on torch (cpu, cuda, npu), on "
        "mindspore (cpu, npu; on cuda MindSpore has no variable all-to-all), and on cpu on any other backend with a "
        "network for it"
    )


def host_problem(collectives: Collectives, threads: int, config: NetworkConfig, part: Part, meter: Meter) -> Problem:
    """Return the operators on host arrays that both frameworks share."""
    keep_freed_memory()
    aggregate: Aggregation | GraphAttention
    if config.conv == "gat":
        aggregate = GraphAttention(part, collectives, threads, config, meter)
    elif part.adjacency:
        switch = ColumnSwitch(part, part.adjacency, collectives, meter)
        aggregate = aggregation_over_columns(part, switch, threads, config.conv, config.dtype)
    else:
        halo = HaloExchange(part, collectives, meter, BFloat16() if config.is_bfloat16 else Exact())
        aggregate = aggregation_over_halo(part, halo, threads, config.conv, config.dtype)
    kernels = kernels_of(part, threads, config.dtype)
    products = choose_products(kernels, is_bfloat16=config.is_bfloat16)
    first_layer = FirstLayer(config, part, aggregate, kernels, products)
    return Problem(config, part, objective_of(part), aggregate, first_layer, kernels, products)


def training_problem(
    collectives: Collectives, threads: int, config: NetworkConfig, part: Part, meter: Meter
) -> Problem:
    """Return what `host_problem` does, with the rows that a training epoch needs; all ranks must call it."""
    problem = host_problem(collectives, threads, config, part, meter)
    if not isinstance(problem.aggregate, Aggregation):
        return problem
    return replace(problem, pruned=prune(part, problem.aggregate, [layer.exchanges for layer in config.layers]))
