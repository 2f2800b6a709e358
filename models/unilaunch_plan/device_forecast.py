"""What an epoch costs on a GPU that nobody has rented yet: bytes and flops, at the rates of its data sheet.

Every row that an edge gathers counts as read from the device's memory, which is pessimistic where the cache holds it;
a kernel that reaches no data-sheet rate makes it optimistic. Never compared with a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from unilaunch_gcn.layers import Layer
from unilaunch_graph.partition.statistics import PartitionStatistics
from unilaunch_plan.forecast import Machine

#: Bytes of a number, by precision: those of rows, and those of sums.
_SIZES = {"float64": (8, 8), "float32": (4, 4), "bfloat16": (2, 4)}
#: Kernels of a layer, forward and backward, and the seconds that a kernel takes however little it does.
_KERNELS, _LEAST = 12, 2e-6


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, by NVIDIA's data sheet.

    Attributes:
        memory: Bytes.
        bytes_per_second: Of its memory.
        flops: Dense products in float64, float32 (without TF32) and bfloat16, a second.
        machine: What messages between two of them cost in one host: NVLink's rate in one direction, or PCIe's.
    """

    memory: float
    bytes_per_second: float
    flops: dict[str, float]
    machine: Machine


def _device(memory: float, terabytes: float, teraflops: tuple[float, float, float], link: float) -> Device:
    flops = {name: rate * 1e12 for name, rate in zip(_SIZES, teraflops, strict=True)}
    return Device(memory * 1e9, terabytes * 1e12, flops, Machine(20e-6, link * 1e9))


#: By the names that `plan --device` takes; SXM where there are several forms.
DEVICES = {
    "l4": _device(24, 0.3, (0.47, 30.3, 121), 32),
    "l40s": _device(48, 0.864, (1.4, 91.6, 362), 32),
    "a100": _device(80, 2.039, (9.7, 19.5, 312), 300),
    "h100": _device(80, 3.35, (34, 67, 989), 450),
    "h200": _device(141, 4.8, (34, 67, 989), 450),
}


class Stored(NamedTuple):
    """What is stored of a graph.

    Attributes:
        density: Share of the features that is stored; 1 of dense ones.
        has_weights: Each edge has a weight.
    """

    density: float
    has_weights: bool

    def shares(self, order: str, degrees: Any) -> tuple[Any, Any]:
        """Return the shares of what *weight* and *self_weight* of the first layer are multiplied by.

        A row of A_hat X has an entry wherever the node or a neighbour has one.

        Args:
            order: Of the first layer; "aggregation first" makes sparse features dense.
            degrees: Mean degree of the nodes: of a part, or of each.
        """
        if order == "aggregation first":
            return 1.0, 1.0
        if order == "aggregated once":
            return np.minimum(1.0, self.density * (degrees + 1)), self.density
        return self.density, self.density


def device_seconds(
    statistics: PartitionStatistics, layers: Sequence[Layer], precision: str, stored: Stored, device: Device
) -> float:
    """Return the seconds that the part with most edges computes in an epoch, forward and backward.

    Args:
        statistics: The partition, counted.
        layers: The network's layers.
        precision: "float32", "float64" or "bfloat16".
        stored: What is stored of the graph.
        device: The GPU.
    """
    heaviest = int(statistics.edges.argmax())
    nodes, edges = float(statistics.nodes[heaviest]), float(statistics.edges[heaviest])
    item, sums = _SIZES[precision]
    weight, own = stored.shares(layers[0].order, edges / max(1.0, nodes))
    entry = 4 + sums * stored.has_weights
    seconds = len(layers) * _KERNELS * _LEAST
    for depth, layer in enumerate(layers):
        products = 3 if depth else 2  # rows @ W, rows.T @ gradient, gradient @ W.T
        matrices = sum(len(parameter.shape) == 2 for parameter in layer.parameters)  # noqa: PLR2004
        read = layer.width_in * (matrices if depth else weight + (matrices - 1) * own)
        flops = 2 * nodes * read * layer.width_out * products
        moved = (read + layer.width_out * matrices) * nodes * item * products
        seconds += max(flops / device.flops[precision], moved / device.bytes_per_second)
        gathered = edges * (layer.width * item + entry) + 2 * nodes * layer.width * item
        passes = 3 * nodes * layer.width_out * item  # ReLU and dropout backward; the loss
        seconds += (layer.exchanges * gathered + passes) / device.bytes_per_second
    return float(seconds)


def device_memory(statistics: PartitionStatistics, layers: Sequence[Layer], precision: str, stored: Stored) -> int:
    """Return the bytes of the rank that needs most on its device.

    Features (sparse ones twice, with their transpose), targets, each layer's output, what the widest layer needs
    meanwhile, the edges, and the halo rows. An evaluation's memory is not the recorded step's, which the graph keeps.

    Args:
        statistics: The partition, counted.
        layers: The network's layers.
        precision: "float32", "float64" or "bfloat16".
        stored: What is stored of the graph.
    """
    item, sums = _SIZES[precision]
    width_in, order = layers[0].width_in, layers[0].order
    weight, own = stored.shares(order, statistics.edges / np.maximum(1, statistics.nodes))
    has_self_weight = any(one.name == "self_weight" for one in layers[0].parameters)
    has_both = order == "aggregation first" or (order == "aggregated once" and has_self_weight)
    is_dense = stored.density == 1 or order == "aggregation first"
    features = width_in * (weight + has_both * own) * (item if is_dense else 2 * (sums + 4))
    features *= 2 if order == "aggregation first" else 1  # X and A_hat X; dropped anew in each step
    widths = [width_in, *(layer.width_out for layer in layers)]
    meanwhile = max(2 * a * item + b * (item + sums) for a, b in pairwise(widths[1:] + widths[-1:]))
    targets = (widths[-1] + 1) * sums  # and the node's share in the loss
    node = features + targets + sum(widths[1:]) * item + 2 * meanwhile  # of a step, and of an evaluation
    halo = 2 * max((layer.width for layer in layers if layer.exchanges), default=0) * item
    return int(
        (statistics.nodes * node + statistics.edges * (4 + sums * stored.has_weights) + statistics.halo * halo).max()
    )
