"""The counts and predictions of `plan`."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from graphs_by_hand import Cut, cut_graphs, parts_of
from unilaunch.errors import PluginError, SpecError
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.part_placement import crossing, place
from unilaunch_gcn.plan import Machine, PlanCommand, predict
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.partition.statistics import count


@given(cut_graphs())
def test_counts_are_the_parts(cut: Cut) -> None:
    """Nodes, edges, cut and who sends how much to whom, as the parts themselves have it."""
    graph, owner, num_parts = cut
    statistics = count(graph, owner, num_parts)
    parts = parts_of(graph, owner, num_parts)
    np.testing.assert_array_equal(statistics.nodes, [part.num_owned for part in parts])
    np.testing.assert_array_equal(statistics.traffic, np.stack([part.send_counts for part in parts]))
    np.testing.assert_array_equal(statistics.halo, [part.num_halo for part in parts])
    np.testing.assert_array_equal(
        statistics.edges, [len(part.owned_indices) + len(part.halo_indices) for part in parts]
    )
    assert 2 * statistics.cut == sum(len(part.halo_indices) for part in parts)


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


@pytest.mark.parametrize("sizes", [[4, 4], [2, 6], [3, 3, 2]])
def test_parts_that_belong_together_share_a_host(sizes: list[int]) -> None:
    """Communities of the sizes of the hosts, shuffled: nothing heavy is left between hosts."""
    community = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    traffic = np.where(community[:, None] == community, 100, 1)
    np.fill_diagonal(traffic, 0)
    hosts = place(traffic, {f"node{at}": size for at, size in enumerate(sizes)})
    assert [hosts.count(f"node{at}") for at in range(len(sizes))] == sizes
    assert crossing(traffic, hosts) == int((community[:, None] != community).sum())


@pytest.mark.parametrize("device", ["h100", "cuda"])
def test_a_device_is_refused(device: str) -> None:
    """In one line, before the graph is read."""
    with pytest.raises(SpecError, match=rf"^--device {device}: plan forecasts ranks on cpu; .*leave --device out$"):
        PlanCommand().run(PlanCommand.spec(dataset="nowhere", device=device))
