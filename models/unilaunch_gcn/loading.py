"""From a part to this backend's network: the one place that knows which network belongs to which backend."""

from unilaunch.backend import Collectives, Placement
from unilaunch.errors import SpecError
from unilaunch.model import Framework
from unilaunch_gcn.aggregation import Aggregation, LinearOperator
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.network import Network, Problem
from unilaunch_gcn.partition import Part
from unilaunch_gcn.setting import Setting
from unilaunch_gcn.tensor_parallel import ColumnSwitch, TensorAggregation


def load_network(framework: Framework, placement: Placement, setting: Setting, part: Part, meter: Meter) -> Network:
    """Return the network of the framework on this rank's device; all ranks must call it.

    Raises:
        SpecError: The framework has no GCN on this device.
    """
    if part.adjacency and placement.device != "cpu":
        raise SpecError(f"--parallel tensor --device {placement.device}: ranks divide columns on cpu only so far")
    backend, collectives = framework.backend.name, framework.collectives
    if backend == "torch":
        from unilaunch_gcn import torch_network

        if placement.device != "cpu":
            return torch_network.TorchDeviceNetwork(setting, part, collectives, meter, str(placement))
        return torch_network.TorchNetwork(host_problem(collectives, placement.threads, setting, part, meter))
    if backend == "mindspore" and placement.device != "cuda":
        from unilaunch_gcn import mindspore_network

        if placement.device == "npu":
            return mindspore_network.MindSporeDeviceNetwork(setting, part, collectives, meter)
        return mindspore_network.MindSporeNetwork(host_problem(collectives, placement.threads, setting, part, meter))
    raise SpecError(
        f"--backend {backend} --device {placement.device}: the model gcn runs on torch (cpu, cuda, npu) and on "
        "mindspore (cpu, npu; on cuda MindSpore has no variable all-to-all)"
    )


def host_problem(collectives: Collectives, threads: int, setting: Setting, part: Part, meter: Meter) -> Problem:
    """Return the operators on host arrays that both frameworks share."""
    aggregate: LinearOperator
    if part.adjacency:
        switch = ColumnSwitch(part, part.adjacency, collectives, meter)
        aggregate = TensorAggregation(part, part.adjacency, switch, threads, setting)
    else:
        aggregate = Aggregation(part, HaloExchange(part, collectives, meter), threads, setting)
    return Problem(setting, part, aggregate, Inputs(setting, part, aggregate))
