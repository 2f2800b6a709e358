"""The counts and predictions of `plan`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import Cut, cut_graphs, make_graph
from unilaunch.errors import InputError, PluginError, SpecError
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.graph import TRAIN
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.operators.pruning import FlagExchange, reach
from unilaunch_graph.partition.cut import split_parts
from unilaunch_graph.partition.order import order_nodes
from unilaunch_graph.partition.part_placement import crossing, place
from unilaunch_graph.partition.statistics import count
from unilaunch_plan.calibration import SilentCollectives
from unilaunch_plan.command import PlanCommand, _write
from unilaunch_plan.device_forecast import DEVICES, Stored, device_memory, device_seconds
from unilaunch_plan.forecast import Machine, predict


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
    options = PlanCommand.spec(dataset="nowhere", device="h100", plot=tmp_path / "page.html")
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
    assert forecast.graph_seconds >= 0.5
    if num_parts == 1:
        assert (forecast.tensor_bytes, forecast.graph_seconds) == (0, 0.5)
    rounded = predict(statistics, layers, "bfloat16", 0.5, machine)  # halo rows travel in 2 bytes, columns in 4
    assert (2 * rounded.halo_bytes, rounded.tensor_bytes) == (forecast.halo_bytes, forecast.tensor_bytes)
    assert rounded.memory >= forecast.memory / 2


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


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_more_parts_need_less_of_a_gpu(name: str, precision: str) -> None:
    """Time and memory of the largest rank; a wide graph fits into none, and reading X takes its time."""
    graph = make_graph(64, [(at, (at + step) % 64) for at in range(64) for step in (1, 2, 5)])
    counted = [count(graph, np.arange(64) * parts // 64, parts) for parts in (1, 2, 4)]
    layers = plan_layers(GcnSpec(hidden=128), 10**9, 40)
    dense = Stored(1.0, has_weights=False)
    seconds = [device_seconds(one, layers, precision, dense, DEVICES[name]) for one in counted]
    memory = [device_memory(one, layers, precision, dense) for one in counted]
    assert seconds == sorted(seconds, reverse=True)
    assert memory == sorted(memory, reverse=True)
    size = 64 * 10**9 * {"float64": 8, "float32": 4, "bfloat16": 2}[precision]
    assert memory[0] > max(size, DEVICES[name].memory / 2)
    assert seconds[0] > 2 * size / DEVICES[name].bytes_per_second
    assert device_memory(counted[0], layers, precision, dense._replace(density=1e-3)) < memory[0] / 100
    weighted = device_memory(counted[0], layers, precision, dense._replace(has_weights=True)) - memory[0]
    assert weighted == counted[0].edges[0] * (8 if precision == "float64" else 4)


@pytest.mark.parametrize(("dropout", "step", "evaluation"), [(0.5, 3552, 2560), (0.0, 3040, 2048)])
def test_memory_of_a_gpu_is_that_of_live_tensors(dropout: float, step: int, evaluation: int) -> None:
    """Bytes of a node's rows that lived at once in Triton's interpreter: of a step, and of an evaluation beside it."""
    counted = count(make_graph(64, []), np.zeros(64, np.int64), 1)
    layers = plan_layers(GcnSpec(hidden=128, layers=3, dropout=dropout), 64, 40)
    forecast = device_memory(counted, layers, "float32", Stored(1.0, has_weights=False)) / 64
    features, targets = 64 * 4, 41 * 4
    assert forecast == pytest.approx(step + evaluation + features + targets, rel=0.05)


def test_sparse_features_fill_up_on_the_way_to_a_gpu() -> None:
    """64 nodes of 6 neighbours: A_hat X has 7 times the entries of X; a wider hidden layer makes X dense."""
    graph = make_graph(64, [(at, (at + step) % 64) for at in range(64) for step in (1, 2, 5)])
    counted = count(graph, np.zeros(64, np.int64), 1)
    sparse, dense = Stored(1e-3, has_weights=False), Stored(1.0, has_weights=False)

    def bytes_of_a_feature(stored: Stored, dropout: float, hidden: int = 4, width: int = 10**8) -> float:
        layers = plan_layers(GcnSpec(hidden=hidden, dropout=dropout), width, 40)
        return device_memory(counted, layers, "float32", stored) / 64 / width

    assert bytes_of_a_feature(sparse, 0.5) == pytest.approx(16e-3, rel=0.01)
    assert bytes_of_a_feature(sparse, 0.0) == pytest.approx(7 * 16e-3, rel=0.01)
    assert bytes_of_a_feature(sparse._replace(density=0.5), 0.0) == pytest.approx(16, rel=0.01)
    assert bytes_of_a_feature(sparse, 0.5, 20, 9) == bytes_of_a_feature(dense, 0.5, 20, 9)


def test_a_plan_for_a_gpu_measures_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line of JSON for each number of parts, without a rank or a framework; attention is refused in one line."""
    spec = PlanCommand.spec
    assert set(get_args(spec.model_fields["device"].annotation)) == {"auto", "cpu", "cuda", "npu", *DEVICES}
    options = {"data_dir": tmp_path, "num_parts": "1,2", "backend": "absent", "as_json": True, "device": "h100"}
    assert PlanCommand().run(spec.model_validate(options)) == 0
    one, two = map(json.loads, capfd.readouterr().out.splitlines())
    assert one["fits"]
    assert two["fits"]
    assert one["graph_seconds"] < 1e-3
    assert two["memory"] < one["memory"]
    assert PlanCommand().run(spec.model_validate({**options, "as_json": False})) == 0
    shown = capfd.readouterr().out
    assert "h100, one for each rank, by its data sheet: 80 GB at 3.35 TB/s" in shown
    assert shown.splitlines()[1].endswith("yes")
    with pytest.raises(SpecError, match="--conv gat --device h100: attention runs on cpu only"):
        PlanCommand().run(spec.model_validate({**options, "conv": "gat"}))


def test_edges_of_a_directed_graph_are_kept_twice() -> None:
    """By target and by source: four bytes more for each edge. Everything else is a symmetric graph's."""
    graph = make_graph(12, [(a, (a + 1) % 12) for a in range(12)])
    layers, owner = plan_layers(GcnSpec(conv="sage"), 3, 2), np.zeros(12, np.int64)
    memory = [
        predict(count(one, owner, 1), layers, "float32", 0.5, Machine(1e-6, 1e9)).memory
        for one in (graph, replace(graph, is_directed=True))
    ]
    assert memory[1] - memory[0] == 4 * 24
