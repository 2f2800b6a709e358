"""A_hat X, made block by block: of features that are read from a file, and in the place of features in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs_by_hand import dense_a_hat, make_graph, parts_of
from unilaunch_gcn.calibration import SilentCollectives
from unilaunch_gcn.host import host_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.store import Origin, Partition, read_part, write_nodes, write_parts

PLAIN = make_graph(9, [(0, 1), (1, 2), (3, 4), (2, 8)])
X = np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32)  # wider than one block of columns
GRAPH = replace(PLAIN, features=X)


def _aggregated(part: Part, dtype: Any, conv: Any = "gcn", *, owns: bool = False) -> Any:
    layers = plan_layers(GcnSpec(dropout=0, conv=conv), 70, GRAPH.num_classes)
    config = NetworkConfig(layers, 0.0, 0, np.dtype(dtype), conv, owns_features=owns)
    return host_problem(SilentCollectives(), 1, config, part, Meter()).first_layer.aggregated


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_aggregated_once_from_a_file(dtype: type, tmp_path: Path) -> None:
    """In the file's type and in another."""
    origin = Origin("x", "x", "x", "x", "x")
    write_parts(tmp_path / "p", origin, parts_of(GRAPH))
    write_nodes(tmp_path / "p", origin, GRAPH, tmp_path / "nodes", print)
    part = read_part(Partition(tmp_path / "p", "x"), 0, 1)
    found = _aggregated(part, dtype)
    np.testing.assert_allclose(found, (dense_a_hat(PLAIN) @ X)[part.owned], rtol=0, atol=1e-5)
    assert found.dtype == dtype


@pytest.mark.parametrize("conv", ["gcn", "sage"])
def test_aggregated_in_the_place_of_the_features(conv: str) -> None:
    """The same bits, where the features are the network's alone and no weight is for a node's own row."""
    found: list[Any] = []
    for owns in (False, True):
        (part,) = parts_of(GRAPH)
        before = part.features.copy()
        found.append(_aggregated(part, np.float32, conv, owns=owns))
        is_in_place = owns and conv == "gcn"
        assert np.shares_memory(found[-1], part.features) == is_in_place
        assert np.array_equal(part.features, before) != is_in_place
    assert np.array_equal(*found)
