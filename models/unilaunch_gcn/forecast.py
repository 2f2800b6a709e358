"""Forecast the cost of a partition before machines are rented: counts, and an alpha-beta model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

from unilaunch_gcn.layers import Layer
from unilaunch_graph.partition.statistics import PartitionStatistics, Traffic


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured.

    Attributes:
        latency: Alpha: seconds of a message that holds nothing.
        bytes_per_second: 1 / beta.
    """

    latency: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an epoch costs, over all ranks unless it says otherwise.

    Attributes:
        halo_bytes: Halo rows' bytes, where ranks divide nodes.
        tensor_bytes: The all-to-alls' bytes, where ranks divide columns; None of attention, which needs whole rows.
        graph_seconds: An epoch, where ranks divide nodes; None: not measured.
        tensor_seconds: An epoch, where ranks divide columns; None of attention, and not measured.
    """

    halo_bytes: int
    tensor_bytes: int | None
    graph_seconds: float | None
    tensor_seconds: float | None


def predict(
    statistics: PartitionStatistics, layers: Sequence[Layer], precision: str, compute: float | None, machine: Machine
) -> Forecast:
    """Return what an epoch of such a partition costs.

    Args:
        statistics: The partition, counted.
        layers: The network's layers.
        precision: "float32", "float64" or "bfloat16", in which only halo rows travel.
        compute: Seconds that the slowest rank computes in an epoch; None: it was not measured.
        machine: What messages cost.
    """
    itemsize = 8 if precision == "float64" else 4
    halo_itemsize = 2 if precision == "bfloat16" else itemsize
    parts = statistics.num_parts
    every = [(statistics.traffic, statistics.traffic)] * len(layers)
    exchanges = [
        (layer.width, traffic)
        for layer, traffics in zip(layers, statistics.exchanged or every, strict=True)
        for traffic in traffics[: layer.exchanges]
    ]
    moved = sum(_switched(statistics.num_nodes, width, parts) for width, _ in exchanges)
    weights = sum(parameter.size for layer in layers for parameter in layer.parameters)
    reduced = (
        (2 * 8 * weights / machine.bytes_per_second + 2 * machine.latency * ceil(log2(parts))) if parts > 1 else 0.0
    )
    by_halo = sum(_seconds(traffic, width * halo_itemsize, machine) for width, traffic in exchanges)
    share = moved * itemsize / parts
    by_columns = share / machine.bytes_per_second + 2 * len(exchanges) * (parts - 1) * machine.latency
    most = statistics.edges.max()
    evenly = statistics.edges.sum() / parts / most if most else 1.0  # without edges each rank computes the same
    is_attention = any(layer.heads for layer in layers)
    return Forecast(
        halo_bytes=sum(int(traffic.sum()) * width for width, traffic in exchanges) * halo_itemsize,
        tensor_bytes=None if is_attention else moved * itemsize,
        graph_seconds=None if compute is None else compute + by_halo + reduced,
        tensor_seconds=(None if is_attention or compute is None else compute * float(evenly) + by_columns + reduced),
    )


def _switched(num_nodes: int, width: int, parts: int) -> int:
    """Return how many numbers move there and back where ranks divide columns: all but a rank's columns of its nodes."""
    begins = [(part * num_nodes // parts, part * width // parts) for part in range(parts + 1)]
    own = sum((end - begin) * (last - first) for (begin, first), (end, last) in pairwise(begins))
    return 2 * (num_nodes * width - own)


def _seconds(traffic: Traffic, row_bytes: int, machine: Machine) -> float:
    """Return the seconds of an exchange: the busiest rank's rows, in and out, and its messages, one after the other."""
    rows = max(int((traffic.sum(axis=0) + traffic.sum(axis=1)).max()) // 2, 0)
    return row_bytes * rows / machine.bytes_per_second + int((traffic > 0).sum(axis=1).max()) * machine.latency
