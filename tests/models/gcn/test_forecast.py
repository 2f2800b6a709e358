"""The counts and predictions of `plan`."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_graphs, make_graph
from unilaunch.errors import InputError, PluginError, SpecError
from unilaunch_gcn.calibration import SilentCollectives
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.plan import Machine, PlanCommand, _write, predict
from unilaunch_gcn.pruning import FlagExchange, reach
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.graph import TRAIN
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part_placement import crossing, place
from unilaunch_graph.partition.statistics import count


@given(cut_graphs())
def test_counts_are_the_parts(cut: Cut) -> None:
    """Nodes, edges, cut and who sends how much to whom, as the parts themselves have it."""
    graph, owner, num_parts = cut
    statistics = count(graph, owner, num_parts)
    parts = list(split_parts(graph, order_nodes(graph, owner, num_parts)))
    np.testing.assert_array_equal(statistics.nodes, [part.num_owned for part in parts])
    np.testing.assert_array_equal(statistics.traffic, np.stack([part.send_counts for part in parts]))
    np.testing.assert_array_equal(statistics.halo, [part.num_halo for part in parts])
    np.testing.assert_array_equal(
        statistics.edges, [len(part.owned_indices) + len(part.halo_indices) for part in parts]
    )
    assert 2 * statistics.cut == sum(len(part.halo_indices) for part in parts)


def test_a_file_that_cannot_be_written_leaves_none_behind(tmp_path: Path) -> None:
    """One line says why."""
    (tmp_path / "page.html").mkdir()
    with pytest.raises(InputError, match=r"--plot .*page.html: cannot be written: Is a directory"):
        _write(tmp_path / "page.html", "text", "--plot")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_without_plotly_is_refused_before_the_graph_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It was refused when all had been measured."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    options = PlanCommand.spec(dataset="nowhere", plot=tmp_path / "page.html")
    with pytest.raises(PluginError, match=r"^--plot: plotly is not installed: pip install 'unilaunch\[report\]'$"):
        PlanCommand().run(options)


@given(cut_graphs())
def test_predicted_bytes_are_the_exchanges(cut: Cut) -> None:
    """Of 2 layers, product first: halo rows, forward and backward, of both widths; nothing on one part."""
    graph, owner, num_parts = cut
    statistics = count(graph, owner, num_parts)
    layers = plan_layers(GcnSpec(hidden=3), 9, 2)
    machine = Machine(1e-6, 1e9)
    forecast = predict(statistics, layers, "float32", 0.5, machine)
    assert forecast.halo_bytes == statistics.halo.sum() * 2 * (3 + 2) * 4
    assert (forecast.graph_seconds or 0) >= 0.5
    if num_parts == 1:
        assert (forecast.tensor_bytes, forecast.graph_seconds) == (0, 0.5)
    rounded = predict(statistics, layers, "bfloat16", 0.5, machine)  # halo rows travel in 2 bytes, columns in 4
    assert (2 * rounded.halo_bytes, rounded.tensor_bytes) == (forecast.halo_bytes, forecast.tensor_bytes)


def test_a_graph_without_edges_takes_its_time_by_columns() -> None:
    """Each rank computes what it computes by nodes."""
    statistics = count(make_graph(40, []), np.arange(40) // 20, 2)
    forecast = predict(statistics, plan_layers(GcnSpec(hidden=3), 9, 2), "float32", 0.5, Machine(1e-6, 1e9))
    assert forecast.tensor_seconds is not None
    assert forecast.tensor_seconds >= 0.5


def test_a_part_that_is_measured_alone_has_training_nodes_in_its_halo() -> None:
    """Without any, the measured epoch had no edges from halo nodes in its backward pass."""
    draw = np.random.default_rng(0)
    graph = make_graph(200, [tuple(pair) for pair in draw.integers(0, 200, (400, 2)).tolist()])
    part = next(split_parts(graph, order_nodes(graph, np.arange(200) // 100, 2)))
    flags = FlagExchange(part, HaloExchange(part, SilentCollectives(), Meter(), Exact()))
    trained = flags.to_halo(part.split == TRAIN)
    assert trained.mean() == pytest.approx((part.split[part.send_rows] == TRAIN).mean(), abs=0.1)
    assert trained.any()
    assert reach(part, flags, 2)[-1].halo.any()


@pytest.mark.parametrize("sizes", [[4, 4], [2, 6], [3, 3, 2]])
def test_parts_that_belong_together_share_a_host(sizes: list[int]) -> None:
    """Communities of the sizes of the hosts, shuffled: nothing heavy is left between hosts."""
    community = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    traffic = np.where(community[:, None] == community, 100, 1)
    np.fill_diagonal(traffic, 0)
    hosts = place(traffic, {f"node{at}": size for at, size in enumerate(sizes)})
    assert [hosts.count(f"node{at}") for at in range(len(sizes))] == sizes
    assert crossing(traffic, hosts) == int((community[:, None] != community).sum())


@given(st.integers(1, 12), st.integers(1, 4))
def test_no_host_gets_more_than_its_slots(parts: int, num_hosts: int) -> None:
    """Whatever the traffic."""
    traffic = np.random.default_rng(parts * num_hosts).integers(0, 9, (parts, parts))
    np.fill_diagonal(traffic, 0)
    slots = {f"n{at}": -(-parts // num_hosts) for at in range(num_hosts)}
    hosts = place(traffic, slots)
    assert len(hosts) == parts
    assert all(hosts.count(name) <= size for name, size in slots.items())


@pytest.mark.parametrize("device", ["h100", "cuda", "npu"])
def test_a_device_is_refused(device: str) -> None:
    """In one line, before the graph is read."""
    with pytest.raises(SpecError, match=rf"^--device {device}: plan forecasts ranks on cpu; .*leave --device out$"):
        PlanCommand().run(PlanCommand.spec(dataset="nowhere", device=device))
