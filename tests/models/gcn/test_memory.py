"""What `plan` says: memory of a training, counts and placements. Its forecasts beside runs: tests/jobs."""

import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_graphs, parts_of
from unilaunch.errors import SpecError
from unilaunch.interfaces.model import Session
from unilaunch.interfaces.world import World
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.checkpoint import History
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import NetworkConfig, count_weights, plan_layers
from unilaunch_gcn.memory import forecast_memory, host_memory, refuse_graph, share_of_graph, share_of_part
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.plan import crossing, place
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import TEST, TRAIN, Graph
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.statistics import count


def _graph(nodes: int, features: Any) -> Graph:
    draw = np.random.default_rng(0)
    indptr, indices = undirected(draw.integers(0, nodes, 4 * nodes), draw.integers(0, nodes, 4 * nodes), nodes)
    split = np.where(np.arange(nodes) % 10 < 6, TRAIN, TEST).astype(np.uint8)
    return Graph(indptr, indices, features, np.arange(nodes) % 5, split, 5)


@pytest.mark.parametrize(("options", "bound"), [
    ({"hidden": 256, "layers": 4, "dropout": 0.0}, 0.15),
    ({"hidden": 256, "precision": "float64"}, 0.15),
    ({"hidden": 256, "conv": "sage", "layers": 4}, 0.15),
    ({"hidden": 32, "conv": "gat", "layers": 3}, 0.35),  # torch holds more rows than MindSpore, which is run here
    ({"hidden": 256, "layers": 4, "bias": True, "layer_norm": True, "residual": True}, 0.15),
])  # fmt: skip
def test_rows_are_those_that_live_at_once(options: dict[str, Any], bound: float) -> None:
    """Bytes of numpy's arrays in a gradient; and after it none of the rows is kept for an evaluation."""
    (part,), spec = parts_of(_graph(4000, np.ones((4000, 32), np.float32))), GcnSpec(**options)
    layers = plan_layers(spec, 32, 5)
    config = NetworkConfig.of(spec, layers, 0)
    network = HostNetwork(training_problem(Alone(), 1, config, part, Meter()), MindSporeTensors())
    network.gradient(0)
    tracemalloc.start()
    gradient = network.gradient(1)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = config.dtype.itemsize
    assert kept < gradient.nbytes + 4000 * layers[0].width_out * size
    memory = forecast_memory(spec, layers, share_of_part(spec, part), "mindspore", 0)
    forecast = memory.activations + count_weights(layers) * size + 4000 * 32 * size
    assert forecast == pytest.approx(peak, rel=bound)


@pytest.mark.parametrize(("kind", "precision", "kept", "copied"), [
    ("float32", "float32", 4, 0), ("float64", "float32", 8, 4), ("float16", "float32", 2, 4),
    ("int32", "float32", 4, 4), ("float64", "float64", 8, 0), ("float32", "float64", 4, 8),
])  # fmt: skip
def test_features_count_in_their_own_type(kind: str, precision: Any, kept: int, copied: int) -> None:
    """With a copy in another type, and the rows of dropout, or A_hat X: in the place of X if sage does not need X."""
    graph, made = _graph(400, np.ones((400, 1000), kind)), np.dtype(precision).itemsize
    all_three, in_place = kept + copied + made, (kept + made if copied else made)
    cases: Any = (("gcn", 0.5, all_three), ("sage", 0.0, all_three), ("gcn", 0.0, in_place))
    for conv, dropout, expected in cases:
        spec = GcnSpec(hidden=16, precision=precision, dropout=dropout, conv=conv)
        for share in (share_of_part(spec, parts_of(graph)[0]), share_of_graph(spec, graph, 1)):
            features = forecast_memory(spec, plan_layers(spec, 1000, 5), share, "torch").features
            assert features == 400 * 1000 * expected


def test_the_ranks_of_a_host_count_together() -> None:
    """One of them would fit; `--force` takes all."""
    graph = _graph(100, sp.csr_array((100, 200_000), dtype=np.float32))
    spec = GcnSpec(hidden=int(host_memory() * 0.7 / 28 / 200_000))
    worlds = [World(0, size, 0, size, 0, 1, "here", "none") for size in (1, 2)]
    one, two = (cast("Session", SimpleNamespace(world=world, backend="torch")) for world in worlds)
    refuse_graph(spec, graph, one)
    with pytest.raises(SpecError, match=r"^its 2 ranks need [\d,.]+ GB, and here has [\d,.]+ GB: .*--force"):
        refuse_graph(spec, graph, two)
    refuse_graph(spec.model_copy(update={"force": True}), graph, two)


@given(cut_graphs())
def test_counts_are_the_parts(cut: Cut) -> None:
    """Nodes, edges, cut and who sends how much to whom, as the parts themselves have it."""
    statistics, parts = count(*cut), parts_of(*cut)
    num_cut = [len(part.halo_indices) for part in parts]
    np.testing.assert_array_equal(statistics.nodes, [part.num_owned for part in parts])
    np.testing.assert_array_equal(statistics.traffic, np.stack([part.send_counts for part in parts]))
    np.testing.assert_array_equal(statistics.halo, [part.num_halo for part in parts])
    np.testing.assert_array_equal(statistics.edges, num_cut + np.array([len(part.owned_indices) for part in parts]))
    assert 2 * statistics.cut == sum(num_cut)


@pytest.mark.parametrize("sizes", [[4, 4], [2, 6], [3, 3, 2]])
def test_parts_that_belong_together_share_a_host(sizes: list[int]) -> None:
    """Communities of the sizes of the hosts, shuffled: nothing heavy is left between hosts."""
    community = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    traffic = np.where(community[:, None] == community, 100, 1)
    np.fill_diagonal(traffic, 0)
    hosts = place(traffic, {f"node{at}": size for at, size in enumerate(sizes)})
    assert [hosts.count(f"node{at}") for at in range(len(sizes))] == sizes
    assert crossing(traffic, hosts) == int((community[:, None] != community).sum())


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 5))
def test_patience_waits_for_a_lower_validation_loss(evaluations: list[tuple[int, bool]], patience: int) -> None:
    """Of the evaluations that count: none of the last *patience* is below all before; also after a checkpoint."""
    history = History()
    for epoch, (loss, counts) in enumerate(evaluations, 1):
        is_lowest = history.add({"epoch": epoch, "val_loss": float(loss)}, counts=counts)
        assert is_lowest == all(loss < before for before, _ in evaluations[: epoch - 1])
    losses = [loss for loss, counts in evaluations if counts]
    expected = len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])
    resumed = History.of(history.losses, history.evaluations, history.counted)
    assert (history.waited >= patience, resumed.waited) == (expected, history.waited)
