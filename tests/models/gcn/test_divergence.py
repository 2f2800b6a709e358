"""A training that has left the finite numbers: its weights, and what Adam divides by."""

import numpy as np
import pytest

from graphs_by_hand import parts_of
from models.graph.torch_parts import WHOLE
from unilaunch.errors import DivergedError
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_gcn.training import refuse_infinite_weights
from unilaunch_graph.exchange.meter import Meter

SPEC = GcnSpec(layers=3, hidden=4, conv="sage", bias=True)


@pytest.mark.parametrize("tensors", [TorchTensors(), MindSporeTensors()], ids=["torch", "mindspore"])
def test_weights_and_squared_gradients_must_be_finite(tensors: Tensors) -> None:
    """Before an evaluation; a squared gradient may be infinite where no weight is. The loss tells of a weight, too."""
    config = NetworkConfig.of(SPEC, plan_layers(SPEC, 8, 3), 2)
    network = HostNetwork(host_problem(Alone(), 1, config, parts_of(WHOLE.graph)[0], Meter()), tensors)
    adam = network.adam(0.1, 0)
    refuse_infinite_weights(SPEC, network, adam, 3)
    adam.second[-1] = np.inf
    with pytest.raises(DivergedError, match=r"^epoch 3: the largest squared gradient is inf, .* --lr 0\.01 is too"):
        refuse_infinite_weights(SPEC, network, adam, 3)
    network.flat[0] = np.nan
    assert np.isnan(network.gradient(0)[0])
    with pytest.raises(DivergedError, match=r"^epoch 3: the largest weight is nan, "):
        refuse_infinite_weights(SPEC, network, adam, 3)
