"""Rows that no loss reaches are left out of a training epoch: the same numbers, from fewer rows and bytes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphs_by_hand import Cut, cut_graphs, make_graph, parts_of
from threaded_ranks import on_every_rank
from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.aggregation import aggregation_over_halo
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.pruning import prune
from unilaunch_gcn.reach import count_pruned
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.tensors import Tensors
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.data.graph import TRAIN, VAL
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.statistics import count

T = TypeVar("T")

F64 = np.dtype(np.float64)
WIDTH = 3


@given(cut=cut_graphs(), conv=st.sampled_from(["gcn", "sage"]), trained=st.integers(1, 6))
@settings(max_examples=60)
def test_pruned_products_are_rows_of_the_whole_ones(cut: Cut, conv: str, trained: int) -> None:
    """Bit by bit, forward and backward; the rows left out have the gradient 0; `plan` counts what is received."""
    graph, owner, num_parts = cut
    graph = replace(graph, split=np.where(np.arange(graph.num_nodes) < trained, TRAIN, VAL).astype(np.uint8))
    parts = parts_of(graph, owner, num_parts)
    x = np.random.default_rng(0).standard_normal((graph.num_nodes, WIDTH))

    def work(rank: int, collectives: Collectives) -> list[tuple[int, ...]]:
        part, meter = parts[rank], Meter()
        received: list[tuple[int, ...]] = []
        full = aggregation_over_halo(part, HaloExchange(part, collectives, meter), 1, conv, F64)
        own = x[part.owned]
        for layer in prune(part, full, [2, 2]):
            gradient = np.zeros_like(own)
            gradient[layer.leaving] = own[layer.leaving]
            expected = full.matmat(own)[layer.leaving], full.rmatmat(gradient)
            meter.read()
            np.testing.assert_array_equal(layer.aggregate.matmat(own[layer.entering]), expected[0])
            forward = meter.read()[1]
            np.testing.assert_array_equal(layer.aggregate.rmatmat(own[layer.leaving]), expected[1][layer.entering])
            received.append((forward, meter.read()[1]))
            assert not np.delete(expected[1], layer.entering, axis=0).any()
            np.testing.assert_array_equal(layer.selection.matmat(own[layer.entering]), own[layer.leaving])
        return received

    exchanged = count_pruned(graph, owner, count(graph, owner, num_parts), 2).exchanged
    for rank, received in enumerate(on_every_rank(num_parts, work)):
        assert bool(received) == (0 < 2 * min(trained, graph.num_nodes) <= graph.num_nodes)
        for layer, planned in zip(received, exchanged, strict=False):
            assert layer == tuple(8 * WIDTH * traffic[:, rank].sum() for traffic in planned)


#: Owners of the nodes of a ring: rank 2 of "three" has no reached row, one of "mixed" has no training node.
OWNERS = {"one": np.zeros(60, np.int64), "three": np.arange(60) // 20, "mixed": np.arange(60) % 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "product first": {"hidden": 4, "layers": 3},
    "aggregated once": {"hidden": 4, "dropout": 0, "bias": True},
    "aggregation first": {"hidden": 20, "layers": 3},
    "everything": {"conv": "sage", "bias": True, "layer_norm": True, "residual": True, "hidden": 5, "layers": 4},
    "means": {"conv": "sage", "hidden": 20, "dropout": 0},
}


def _with_part(parts: list[Part], work: Callable[[Part, Collectives], T]) -> Callable[[int, Collectives], T]:
    return lambda rank, collectives: work(parts[rank], collectives)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_pruned_gradient_is_the_whole_one(options: dict[str, Any]) -> None:
    """To 1e-12 with any parts, repeats have the same bits, and an evaluation has every row."""
    ring = make_graph(60, [(node, (node + 1) % 60) for node in range(60)])
    draw = np.random.default_rng(4)
    split = np.where(np.isin(np.arange(60), [2, 4, 6, 30]), TRAIN, VAL).astype(np.uint8)
    graph = replace(ring, features=draw.random((60, 11), np.float32), labels=np.arange(60) % 3, split=split)
    graph = replace(graph, num_classes=3)
    spec = GcnSpec(**options)
    config = NetworkConfig(plan_layers(spec, 11, 3), spec.dropout, 2, F64, spec.conv)

    def work(part: Part, collectives: Collectives, tensors: type[Tensors] = TorchTensors) -> tuple[NDArray[Any], ...]:
        problem = training_problem(collectives, 1, config, part, Meter())
        assert len(problem.pruned) == spec.layers
        assert sum(len(layer.entering) for layer in problem.pruned) < spec.layers * part.num_owned
        pruned, whole = (HostNetwork(one, tensors()) for one in (problem, replace(problem, pruned=())))
        found = pruned.gradient(3), pruned.gradient(3), whole.gradient(3)
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(pruned.logits(), whole.logits())
        for gradient in found:
            collectives.all_reduce(gradient)
        return found

    for owner in OWNERS.values():
        parts = parts_of(graph, owner)
        gradient, _, expected = on_every_rank(len(parts), _with_part(parts, work))[0]
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12)
    (whole,) = parts_of(graph, OWNERS["one"], 1)
    np.testing.assert_allclose(work(whole, Alone(), MindSporeTensors)[0], expected, rtol=0, atol=1e-12)
