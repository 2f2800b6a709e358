"""What `plan` counts and predicts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_graphs
from unilaunch_gcn.forecast import Machine, predict
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.partition.cut import split_parts
from unilaunch_graph.partition.order import order_nodes
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


@given(cut_graphs())
def test_predicted_bytes_are_the_exchanges(cut: Cut) -> None:
    """Of 2 layers, product first: halo rows, forward and backward, of both widths; nothing on one part."""
    graph, owner, num_parts = cut
    statistics = count(graph, owner, num_parts)
    layers = plan_layers(GcnSpec(hidden=3), 9, 2)
    machine = Machine(1e-6, 1e9)
    forecast = predict(statistics, layers, "float32", 0.5, machine)
    assert forecast.halo_bytes == statistics.halo.sum() * 2 * (3 + 2) * 4
    assert forecast.graph_seconds >= 0.5
    if num_parts == 1:
        assert (forecast.tensor_bytes, forecast.graph_seconds) == (0, 0.5)
    rounded = predict(statistics, layers, "bfloat16", 0.5, machine)  # halo rows travel in 2 bytes, columns in 4
    assert (2 * rounded.halo_bytes, rounded.tensor_bytes) == (forecast.halo_bytes, forecast.tensor_bytes)
    assert rounded.memory >= forecast.memory / 2


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
