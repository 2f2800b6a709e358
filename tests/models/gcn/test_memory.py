"""The memory of a training: its forecast, what a run does with it, what is measured; options that change nothing."""

import mmap
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import parts_of
from unilaunch.errors import SpecError
from unilaunch.interfaces.world import World
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.checkpoint import History
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import NetworkConfig, count_weights, plan_layers
from unilaunch_gcn.memory import forecast_memory, host_memory, peak_memory, refuse_graph, share_of_graph, share_of_part
from unilaunch_gcn.mindspore_tensors import MindSporeTensors
from unilaunch_gcn.options import refuse_options
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import TEST, TRAIN, Graph
from unilaunch_graph.exchange.meter import Meter


def _graph(nodes: int, features: Any) -> Graph:
    draw = np.random.default_rng(0)
    indptr, indices = undirected(draw.integers(0, nodes, 4 * nodes), draw.integers(0, nodes, 4 * nodes), nodes)
    split = np.where(np.arange(nodes) % 10 < 6, TRAIN, TEST).astype(np.uint8)
    return Graph(indptr, indices, features, np.arange(nodes) % 5, split, 5)


@pytest.mark.parametrize("options", [
    {"hidden": 256, "layers": 4, "dropout": 0.0},
    {"hidden": 256, "precision": "float64"},
    {"hidden": 256, "conv": "sage", "layers": 4},
    {"hidden": 32, "conv": "gat", "layers": 3},
    {"hidden": 256, "layers": 4, "bias": True, "layer_norm": True, "residual": True},
])  # fmt: skip
def test_rows_are_those_that_live_at_once(options: dict[str, Any]) -> None:
    """Bytes of numpy's arrays in a gradient; and after it none of the rows is kept for an evaluation."""
    graph = _graph(4000, np.ones((4000, 32), np.float32))
    part = parts_of(graph)[0]
    spec = GcnSpec(**options)
    layers = plan_layers(spec, 32, 5)
    config = NetworkConfig.of(spec, layers, 0)
    network = HostNetwork(training_problem(Alone(), 1, config, part, Meter()), MindSporeTensors())
    network.gradient(0)
    tracemalloc.start()
    gradient = network.gradient(1)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one_layer = 4000 * layers[0].width_out * config.dtype.itemsize
    assert kept < gradient.nbytes + one_layer
    memory = forecast_memory(spec, layers, share_of_part(spec, part), "mindspore", 0)
    gradients = count_weights(layers) * config.dtype.itemsize
    forecast = memory.activations + gradients + 4000 * 32 * config.dtype.itemsize
    bound = 0.35 if spec.conv == "gat" else 0.15  # of attention torch holds more rows than MindSpore, which is run here
    assert forecast == pytest.approx(peak, rel=bound)


@pytest.mark.parametrize(("kind", "precision", "kept", "copied"), [
    ("float32", "float32", 4, 0), ("float64", "float32", 8, 4), ("float16", "float32", 2, 4),
    ("int32", "float32", 4, 4), ("float64", "float64", 8, 0), ("float32", "float64", 4, 8),
])  # fmt: skip
def test_features_count_in_their_own_type(kind: str, precision: Any, kept: int, copied: int) -> None:
    """As the user gave them, with a training's copy in another type, and the rows that dropout makes of them.

    A_hat X is another array, but stands in the place of the copy or of X where sage does not need X too.
    """
    graph = _graph(400, np.ones((400, 1000), kind))
    part = parts_of(graph)[0]
    made = np.dtype(precision).itemsize
    all_three, in_place = kept + copied + made, (kept + made if copied else made)
    cases: Any = (("gcn", 0.5, all_three), ("sage", 0.0, all_three), ("gcn", 0.0, in_place))
    for conv, dropout, expected in cases:
        spec = GcnSpec(hidden=16, precision=precision, dropout=dropout, conv=conv)
        for share in (share_of_part(spec, part), share_of_graph(spec, graph, 1)):
            features = forecast_memory(spec, plan_layers(spec, 1000, 5), share, "torch").features
            assert features == 400 * 1000 * expected


def test_the_ranks_of_a_host_count_together() -> None:
    """One of them would fit; `--force` takes all."""
    graph = _graph(100, sp.csr_array((100, 200_000), dtype=np.float32))
    spec = GcnSpec(hidden=int(host_memory() * 0.7 / 28 / 200_000))
    one, two = (
        SimpleNamespace(world=World(0, size, 0, size, 0, 1, "here", "none"), backend="torch") for size in (1, 2)
    )
    refuse_graph(spec, graph, one)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^its 2 ranks need [\d,.]+ GB, and here has [\d,.]+ GB: .*--force"):
        refuse_graph(spec, graph, two)  # type: ignore[arg-type]
    refuse_graph(spec.model_copy(update={"force": True}), graph, two)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("options", "words"), [
    ({"layers": 2, "residual": True}, "--residual --layers 2: only a layer between the first and the last"),
    ({"layers": 1, "hidden": 64}, "--hidden 64 --layers 1"),
    ({"layers": 1, "layer_norm": True}, "--layer-norm --layers 1"),
    ({"layers": 1, "conv": "gat", "heads": 4}, "--heads 4 --layers 1"),
])  # fmt: skip
def test_options_that_change_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"^{words}"):
        refuse_options(GcnSpec(**options))


_FREED = """
import resource
from unilaunch_gcn.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults() + faults())
keep_freed_memory()
faults()
print(faults())
"""


def test_freed_memory_is_used_again() -> None:
    """The second array of a size costs no fresh pages. 64 MB are more than glibc would keep by itself."""
    done = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert kept * 10 < without


_BYTES = 1 << 26
_OTHER = f"""
import mmap, sys
memory = mmap.mmap(int(sys.argv[1]), {_BYTES})
memory[::4096] = bytes({_BYTES} // 4096)
print("ready", flush=True)
input()
"""


def test_shared_pages_count_by_their_share() -> None:
    """Of a buffer that another process maps too, half."""
    rollup = Path("/proc/self/smaps_rollup")
    if not (rollup.exists() and "Pss_Shmem" in rollup.read_text()):
        pytest.skip("this kernel has no Pss_Shmem in /proc/self/smaps_rollup")
    file = os.memfd_create("shared")
    os.ftruncate(file, _BYTES)
    with mmap.mmap(file, _BYTES) as memory:
        memory[::4096] = bytes(_BYTES // 4096)
        before = peak_memory()
        line = [sys.executable, "-c", _OTHER, str(file)]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file]) as other:
            assert other.stdout
            assert other.stdout.readline() == b"ready\n"
            shared = peak_memory()
            other.communicate(b"\n")
    os.close(file)
    assert before - shared == pytest.approx(_BYTES / 2, rel=0.1)
