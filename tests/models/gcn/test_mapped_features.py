"""Features that are read from a file: A_hat X made of them, block by block."""

from dataclasses import replace
from pathlib import Path

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
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.kernels.portable import PortableKernels
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.store import Origin, Partition, load_part, write_nodes, write_parts


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
    layers = plan_layers(GcnSpec(dropout=0), 70, graph.num_classes)
    config = NetworkConfig(layers, 0.0, 0, dtype)
    aggregate = aggregation_over_halo(
        part,
        HaloExchange(part, SilentCollectives(), Meter(), Exact()),
        1,
        config.conv,
        config.dtype,
    )
    inputs = FirstLayer(config, part, aggregate, PortableKernels(dtype), PortableKernels(dtype))
    assert inputs.aggregated is not None
    expected = (dense_a_hat(plain) @ x)[part.owned]
    np.testing.assert_allclose(inputs.aggregated, expected, rtol=0, atol=1e-5)
    assert inputs.aggregated.dtype == dtype
