"""Mt-KaHyPar: a partitioner whose objective km1 is exactly the size of the halo."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_graph.data.graph import Graph
from unilaunch_graph.partition.partitioner import Partitioner
from unilaunch_graph.partition.refine import IMBALANCE

#: V-cycles, which improve the whole partition. The first three lower the halo by 0.8 % on average.
_CYCLES = 3


class MtKaHyPar(Partitioner):
    """Mt-KaHyPar (Gottesbueren et al., 2022) on the hypergraph whose nets are each node with its neighbours.

    km1 is the sum over all nets of the number of their parts minus 1: the parts in which the net's node is a halo node.
    The deterministic preset gives the same parts in every run. It takes 7 s for a million directed edges times parts of
    a graph with communities, and minutes for a random graph of a million edges.
    """

    package = "mtkahypar"

    @override
    def cut(self, graph: Graph, num_parts: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        import mtkahypar

        mtkahypar.set_seed(1)
        start = _start()
        context = start.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
        context.set_partitioning_parameters(num_parts, IMBALANCE, mtkahypar.Objective.KM1)
        context.logging = False
        count = graph.num_nodes
        pins = np.insert(graph.indices, graph.indptr[:-1], np.arange(count))  # each node, then its neighbours
        nets = np.split(pins, graph.indptr[1:-1] + np.arange(1, count))
        hypergraph = start.create_hypergraph(context, count, count, nets, weights, np.ones(count, np.int64))
        parts = hypergraph.partition(context)
        parts.improve_partition(context, _CYCLES)
        return np.asarray(parts.get_partition(), np.int64)


@cache
def _start() -> Any:
    """Start the library, once in a process, with one thread, so that no other threads remain in a rank."""
    import mtkahypar

    return mtkahypar.initialize(1)
