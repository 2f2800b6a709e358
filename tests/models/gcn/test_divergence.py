"""Which layer a diverged training names: the first whose weights or output are not finite, on all ranks alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphs_by_hand import parts_of
from models.graph.torch_parts import make_whole
from threaded_ranks import on_every_rank
from unilaunch.errors import DivergedError
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem, training_problem
from unilaunch_gcn.layers import NetworkConfig, by_layer, plan_layers, views
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_gcn.training import LOSS, FiniteCheck
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part

GRAPH = make_whole().graph
SPEC = GcnSpec(layers=3, hidden=4, conv="sage", bias=True)
CONFIG = NetworkConfig.of(SPEC, plan_layers(SPEC, 8, 3), 2)
BFLOAT16 = SPEC.model_copy(update={"precision": "bfloat16"})


def _host(tensors: Any) -> Callable[[Part, Any], Network]:
    return lambda part, ranks: HostNetwork(training_problem(ranks, 1, CONFIG, part, Meter()), tensors)


def _device(tensors: Any, spec: GcnSpec) -> Callable[[Part, Any], Network]:
    config = NetworkConfig.of(spec, plan_layers(spec, 8, 3), 2)
    return lambda part, ranks: device_network(config, part, tensors, ranks, Meter())


def _fill(network: Network, depth: int, value: float) -> None:
    """Make one layer's matrix *value* on the diagonal, and 0 elsewhere."""
    matrix = by_layer(views(network.flat, network.layers), network.layers)[depth]["weight"]
    matrix[...] = 0
    for place in range(min(matrix.shape)):
        matrix[place, place] = value


def _line(network: Network, collectives: Collectives) -> str:
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(DivergedError) as raised:
        FiniteCheck(SPEC, network, network.adam(0.1, 0), collectives).loss(LOSS, float("nan"), 2)
    return str(raised.value)


NETWORKS = {
    "torch": _host(TorchTensors()),
    "torch device": _device(TorchDeviceTensors("cpu"), SPEC),
    "mindspore device": _device(MindSporeDeviceTensors(), SPEC),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_first_layer_that_is_not_finite_is_named(kind: str) -> None:
    """Its output, though its weights are finite; or its weights, before any output."""
    (part,), make = parts_of(GRAPH), NETWORKS[kind]
    for filled, expected in (
        ([(0, 1e30), (1, 1e30)], "has diverged in the output of layer 2 of 3, probably because --lr 0.01 is too high"),
        ([(2, float("nan"))], "in the weights of layer 3 of 3,"),
        ([(depth, float("inf")) for depth in range(3)], "in the weights of all layers,"),
        ([], "behind the last layer: without dropout its output is finite,"),
    ):
        network = make(part, Alone())
        for depth, value in filled:
            _fill(network, depth, value)
        assert expected in _line(network, Alone())


def test_all_ranks_name_the_same_layer() -> None:
    """Where the rows of one rank alone are not finite, all say the same: the ranks' lines are one."""
    parts = parts_of(GRAPH, np.arange(GRAPH.num_nodes) % 2)

    def work(rank: int, collectives: Collectives) -> str:
        part = parts[rank]
        network = HostNetwork(host_problem(collectives, 1, CONFIG, part, Meter()), TorchTensors())
        _fill(network, 1, 1e38)
        _fill(network, 0, 1e3 if rank else 1e-3)  # the check reads its own rank's weights
        return _line(network, collectives)

    lines = on_every_rank(2, work)
    assert lines[0] == lines[1]
    assert "in the output of layer 2 of 3" in lines[0]


def test_weights_and_squared_gradients_name_their_layer() -> None:
    """Before an evaluation; a squared gradient may be infinite where no weight is."""
    (part,) = parts_of(GRAPH)
    network = NETWORKS["torch"](part, Alone())
    adam = network.adam(0.1, 0)
    check = FiniteCheck(SPEC, network, adam, Alone())
    check.weights(3)
    views(adam.second, network.layers)[-1][0] = np.inf
    with pytest.raises(DivergedError, match=r"epoch 3: the largest squared gradient is inf, .* in layer 3 of 3, "):
        check.weights(3)
    _fill(network, 1, float("nan"))
    with pytest.raises(DivergedError, match=r"epoch 3: the largest weight is nan, .* in layer 2 of 3, "):
        check.weights(3)
