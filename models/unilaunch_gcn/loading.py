"""From a part to this backend's network: the one place that knows which network belongs to which backend."""

import numpy as np

from unilaunch.errors import SpecError
from unilaunch.model import Session
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.halo import HaloExchange
from unilaunch_gcn.inputs import Inputs
from unilaunch_gcn.layers import Layer
from unilaunch_gcn.meter import Meter
from unilaunch_gcn.network import Network, Problem
from unilaunch_gcn.partition import Part
from unilaunch_gcn.setting import Setting
from unilaunch_gcn.spec import GcnSpec


def load_network(session: Session, options: GcnSpec, part: Part, layers: list[Layer], meter: Meter) -> Network:
    """Return the network of the session's backend on the session's device; all ranks must call it.

    Raises:
        SpecError: The backend has no GCN.
    """
    setting = Setting(layers, options.dropout, session.seed, np.dtype(options.precision))
    placement = session.placement
    if session.backend.name == "torch":
        from unilaunch_gcn import torch_network

        if placement.device != "cpu":
            return torch_network.TorchDeviceNetwork(setting, part, session.collectives, meter, str(placement))
        return torch_network.TorchNetwork(host_problem(session, setting, part, meter))
    if session.backend.name == "mindspore":
        from unilaunch_gcn import mindspore_network

        if placement.device == "cuda":
            raise SpecError("--device cuda: MindSpore has no variable all-to-all on GPU; gcn runs there with --backend torch")
        if placement.device == "npu":
            return mindspore_network.MindSporeDeviceNetwork(setting, part, session.collectives, meter)
        return mindspore_network.MindSporeNetwork(host_problem(session, setting, part, meter))
    raise SpecError(f"--backend {session.backend.name}: the model gcn runs on torch and mindspore")


def host_problem(session: Session, setting: Setting, part: Part, meter: Meter) -> Problem:
    """Return the operators on host arrays that both frameworks share."""
    halo = HaloExchange(part, session.collectives, meter)
    aggregate = Aggregation(part, halo, session.placement.threads, setting.dtype)
    return Problem(setting, part, aggregate, Inputs(setting, part, aggregate))
