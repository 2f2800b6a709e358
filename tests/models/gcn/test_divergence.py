"""Which layer a diverged training names: the first whose weights or output are not finite, on all ranks alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphs_by_hand import parts_of
from models.graph.torch_parts import WHOLE
from threaded_ranks import on_every_rank
from unilaunch.errors import DivergedError
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.device import device_network
from unilaunch_gcn.host import HostNetwork, host_problem
from unilaunch_gcn.layers import NetworkConfig, by_layer, plan_layers, views
from unilaunch_gcn.mindspore_tensors import MindSporeDeviceTensors, MindSporeTensors
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_gcn.training import LOSS, FiniteCheck
from unilaunch_graph.exchange.meter import Meter

SPEC = GcnSpec(layers=3, hidden=4, conv="sage", bias=True)
CONFIG = NetworkConfig.of(SPEC, plan_layers(SPEC, 8, 3), 2)
#: A network of a part, by the ranks' collectives.
NETWORKS: dict[str, Callable[[Any, Any], Network]] = {
    "host": lambda part, ranks: HostNetwork(host_problem(ranks, 1, CONFIG, part, Meter()), TorchTensors()),
    "mindspore host": lambda part, ranks: HostNetwork(
        host_problem(ranks, 1, CONFIG, part, Meter()), MindSporeTensors()
    ),
    "torch device": lambda part, ranks: device_network(CONFIG, part, TorchDeviceTensors("cpu"), ranks, Meter()),
    "mindspore device": lambda part, ranks: device_network(CONFIG, part, MindSporeDeviceTensors(), ranks, Meter()),
}


def _fill(network: Network, depth: int, value: float) -> None:
    """Make one layer's matrix *value* on the diagonal, and 0 elsewhere."""
    matrix = by_layer(views(network.flat, network.layers), network.layers)[depth]["weight"]
    matrix[...] = 0
    for place in range(min(matrix.shape)):
        matrix[place, place] = value


def _line(network: Network, collectives: Any) -> str:
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(DivergedError) as raised:
        FiniteCheck(SPEC, network, network.adam(0.1, 0), collectives).loss(LOSS, float("nan"), 2)
    return str(raised.value)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        ([(0, 1e30), (1, 1e30)], "in the output of layer 2 of 3, probably because --lr 0.01 is too high"),
        ([(2, float("nan"))], "in the weights of layer 3 of 3,"),
        ([(depth, float("inf")) for depth in range(3)], "in the weights of all layers,"),
        ([], "behind the last layer: without dropout its output is finite,"),
    ],
)
def test_the_first_layer_that_is_not_finite_is_named(kind: str, filled: Any, expected: str) -> None:
    """Its output, though its weights are finite; or its weights, before any output."""
    network = NETWORKS[kind](parts_of(WHOLE.graph)[0], Alone())
    for depth, value in filled:
        _fill(network, depth, value)
    assert expected in _line(network, Alone())


def test_all_ranks_name_the_same_layer() -> None:
    """Where the rows of one rank alone are not finite, all say the same: the ranks' lines are one."""
    parts = parts_of(WHOLE.graph, np.arange(40) % 2)

    def work(rank: int, collectives: Any) -> str:
        network = NETWORKS["host"](parts[rank], collectives)
        _fill(network, 1, 1e38)
        _fill(network, 0, 1e3 if rank else 1e-3)  # the check reads its own rank's weights
        return _line(network, collectives)

    first, second = on_every_rank(2, work)
    assert first == second
    assert "in the output of layer 2 of 3" in first


def test_weights_and_squared_gradients_name_their_layer() -> None:
    """Before an evaluation; a squared gradient may be infinite where no weight is."""
    network = NETWORKS["host"](parts_of(WHOLE.graph)[0], Alone())
    adam = network.adam(0.1, 0)
    check = FiniteCheck(SPEC, network, adam, Alone())
    check.weights(3)
    views(adam.second, network.layers)[-1][0] = np.inf
    with pytest.raises(DivergedError, match=r"epoch 3: the largest squared gradient is inf, .* in layer 3 of 3, "):
        check.weights(3)
    _fill(network, 1, float("nan"))
    with pytest.raises(DivergedError, match=r"epoch 3: the largest weight is nan, .* in layer 2 of 3, "):
        check.weights(3)
