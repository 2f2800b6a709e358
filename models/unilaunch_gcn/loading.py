"""From a part to this backend's network: the one place that knows which network belongs to which backend."""

import numpy as np

from unilaunch.backend import Collectives
from unilaunch.errors import SpecError
from unilaunch.model import Framework, Session
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.network import Network, Problem
from unilaunch_gcn.partition import Part
from unilaunch_gcn.setting import Setting
from unilaunch_gcn.spec import GcnSpec


def load_network(
    session: Session, framework: Framework, options: GcnSpec, part: Part, layers: list[Layer], meter: Meter
) -> Network:
    """Return the network of the framework on this rank's device; all ranks must call it.

    Raises:
        SpecError: The backend has no GCN.
    """
    setting = Setting(layers, options.dropout, session.seed, np.dtype(options.precision))
    placement, backend, collectives = session.placement, framework.backend.name, framework.collectives
    if backend == "torch":
        from unilaunch_gcn import torch_network

        if placement.device != "cpu":
            return torch_network.TorchDeviceNetwork(setting, part, collectives, meter, str(placement))
        return torch_network.TorchNetwork(host_problem(collectives, placement.threads, setting, part, meter))
    if backend == "mindspore":
        from unilaunch_gcn import mindspore_network

        if placement.device == "cuda":
            raise SpecError("--device cuda: MindSpore has no variable all-to-all on GPU; gcn runs there with --backend torch")
        if placement.device == "npu":
            return mindspore_network.MindSporeDeviceNetwork(setting, part, collectives, meter)
        return mindspore_network.MindSporeNetwork(host_problem(collectives, placement.threads, setting, part, meter))
    raise SpecError(f"--backend {backend}: the model gcn runs on torch and mindspore")


def host_problem(collectives: Collectives, threads: int, setting: Setting, part: Part, meter: Meter) -> Problem:
    """Return the operators on host arrays that both frameworks share."""
    halo = HaloExchange(part, collectives, meter)
    aggregate = Aggregation(part, halo, threads, setting.dtype)
    return Problem(setting, part, aggregate, Inputs(setting, part, aggregate))
