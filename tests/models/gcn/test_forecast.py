"""The counts and placements of `plan`. Its forecasts are compared with runs in tests/jobs/test_predictions.py."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from graphs_by_hand import Cut, cut_graphs, parts_of
from unilaunch.errors import PluginError, SpecError
from unilaunch_gcn.plan import PlanCommand, crossing, place
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


@pytest.mark.parametrize("sizes", [[4, 4], [2, 6], [3, 3, 2]])
def test_parts_that_belong_together_share_a_host(sizes: list[int]) -> None:
    """Communities of the sizes of the hosts, shuffled: nothing heavy is left between hosts."""
    community = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    traffic = np.where(community[:, None] == community, 100, 1)
    np.fill_diagonal(traffic, 0)
    hosts = place(traffic, {f"node{at}": size for at, size in enumerate(sizes)})
    assert [hosts.count(f"node{at}") for at in range(len(sizes))] == sizes
    assert crossing(traffic, hosts) == int((community[:, None] != community).sum())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda"}, "--device cuda: plan forecasts ranks on cpu; .*leave --device out$"),
        ({"plot": "page.html"}, r"--plot: plotly .* pip install 'unilaunch\[report\]'$"),
    ],
)
def test_what_plan_cannot_do_is_refused_before_the_graph_is_read(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line: a device, and a page where plotly is not installed."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises((SpecError, PluginError), match=f"^{words}"):
        PlanCommand().run(PlanCommand.spec(dataset="nowhere", **options))
