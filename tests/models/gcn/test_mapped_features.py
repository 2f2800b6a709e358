"""A_hat X, made block by block: of features that are read from a file, and in the place of features in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from graphs_by_hand import dense_a_hat, make_graph
from unilaunch_gcn.aggregation import aggregation_over_halo
from unilaunch_gcn.calibration import SilentCollectives
from unilaunch_gcn.features import FirstLayer
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.arrays import FloatType
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels.portable import PortableKernels
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import Origin, Partition, load_part, write_nodes, write_parts


def _first_layer(part: Part, config: NetworkConfig) -> FirstLayer:
    halo = HaloExchange(part, SilentCollectives(), Meter())
    aggregate = aggregation_over_halo(part, halo, 1, config.conv, config.dtype)
    return FirstLayer(config, part, aggregate, PortableKernels(config.dtype), PortableKernels(config.dtype))


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)], ids=str)
def test_aggregated_once_from_a_file(dtype: FloatType, tmp_path: Path) -> None:
    """Wider than one block of columns, in the file's type and in another."""
    plain = make_graph(9, [(0, 1), (1, 2), (3, 4), (2, 8)])
    x = np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32)
    graph = replace(plain, features=x)
    origin = Origin("x", "x", "x", "x", "x")
    write_parts(tmp_path / "p", origin, split_parts(graph, order_nodes(graph, np.zeros(9, np.int64), 1)))
    write_nodes(tmp_path / "p", origin, graph, tmp_path / "nodes", print)
    part = load_part(Partition(tmp_path / "p", "x"), 0, 1)
    inputs = _first_layer(part, NetworkConfig(plan_layers(GcnSpec(dropout=0), 70, graph.num_classes), 0.0, 0, dtype))
    assert inputs.aggregated is not None
    expected = (dense_a_hat(plain) @ x)[part.owned]
    np.testing.assert_allclose(inputs.aggregated, expected, rtol=0, atol=1e-5)
    assert inputs.aggregated.dtype == dtype


@pytest.mark.parametrize("conv", ["gcn", "sage"])
def test_aggregated_in_the_place_of_the_features(conv: Literal["gcn", "sage"]) -> None:
    """The same bits, where the features are the network's alone and no weight is for a node's own row."""
    x = np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32)
    graph = replace(make_graph(9, [(0, 1), (1, 2), (3, 4), (2, 8)]), features=x)
    layers = plan_layers(GcnSpec(dropout=0, conv=conv), 70, graph.num_classes)
    found: list[Any] = []
    for owns in (False, True):
        (part,) = split_parts(graph, order_nodes(graph, np.zeros(9, np.int64), 1))
        before = part.features.copy()
        config = NetworkConfig(layers, 0.0, 0, np.dtype(np.float32), conv, owns_features=owns)
        found.append(_first_layer(part, config).aggregated)
        is_in_place = owns and conv == "gcn"
        assert np.shares_memory(found[-1], part.features) == is_in_place
        assert np.array_equal(part.features, before) != is_in_place
    assert np.array_equal(*found)
