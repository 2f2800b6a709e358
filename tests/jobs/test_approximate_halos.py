"""Approximate halos under a real mpirun: the same training as on ranks that are threads, and the bytes they promise."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher
from jobs.trained import train_cases
from threaded_ranks import on_every_rank
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Collectives
from unilaunch_gcn.build import training_problem
from unilaunch_gcn.host_network import HostNetwork
from unilaunch_gcn.layers import count_decayed, plan_layers
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.optimizer import Adam
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.preparation import prepare
from unilaunch_graph.partition.store import load_part

pytestmark = pytest.mark.xdist_group("approximate halos")

SEED, EPOCHS, SHARE = 0, 6, 0.25
RANKS = {"torch": 3, "mindspore": 2}
HALOS = ["exact", "stale", "int8", f"sample:{SHARE}"]
#: Columns that travel in each epoch: the outputs of both layers, forward and backward.
WIDTHS = [16, 7, 7, 16]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, where the jobs find the partitions that are made here."""
    return tmp_path_factory.mktemp("data")


def _options(data: Path, halo: str) -> GcnSpec:
    return GcnSpec(data_dir=data, precision="float64", epochs=EPOCHS, halo=halo)


@cache
def _parts(data: Path, ranks: int) -> list[Part]:
    """Return the parts of the generated graph."""
    partition = prepare(_options(data, "exact"), ranks, Log())
    return [load_part(partition.folder, index, ranks, partition.fingerprint) for index in range(ranks)]


@cache
def _on_threads(data: Path, ranks: int) -> dict[str, tuple[list[float], int]]:
    """Return losses and bytes of the last epoch for each halo, on ranks that are threads."""
    return {halo: _train_on_threads(_options(data, halo), _parts(data, ranks)) for halo in HALOS}


def _train_on_threads(options: GcnSpec, parts: list[Part]) -> tuple[list[float], int]:
    layers = plan_layers(options, parts[0].num_features, parts[0].num_classes)
    config = NetworkConfig.of(options, layers, SEED)

    def work(rank: int, collectives: Collectives) -> tuple[list[float], int]:
        meter = Meter()
        network = HostNetwork(training_problem(collectives, 1, config, parts[rank], meter), TorchTensors())
        adam = Adam(network.flat, network.flat * 0.0, options.lr, options.weight_decay, count_decayed(layers))
        losses, received = [], 0
        for epoch in range(options.epochs):
            meter.read()
            fused = network.gradient(epoch)
            received = meter.read()[1]
            collectives.all_reduce(fused)
            losses.append(float(fused[0]))
            adam.step(fused[2:])
        network.evaluate()
        return losses, received

    ranks = on_every_rank(len(parts), work)
    return ranks[0][0], sum(received for _, received in ranks)


def test_approximate_halos_train_under_mpirun_as_on_threads(
    openmpi5: Launcher, backend: str, data: Path, tmp_path: Path
) -> None:
    """Losses to 1e-10 and the same bytes, on both frameworks; each kind of halo has losses of its own."""
    ranks = RANKS[backend]
    on_threads = _on_threads(data, ranks)  # which also makes the partition
    common = ["--data-dir", str(data), "--precision", "float64", "--epochs", str(EPOCHS), "--seed", str(SEED)]
    trained = train_cases(openmpi5, backend, ranks, {halo: [*common, "--halo", halo] for halo in HALOS}, tmp_path)
    for halo, (losses, received) in on_threads.items():
        np.testing.assert_allclose(trained[halo].result["loss"], losses, rtol=0, atol=1e-10, err_msg=halo)
        assert trained[halo].result["bytes_per_epoch"] == received, halo
    assert min(np.diff(sorted(losses[-1] for losses, _ in on_threads.values()))) > 1e-6


@pytest.mark.parametrize("ranks", RANKS.values())
def test_approximate_halos_send_the_bytes_that_they_promise(ranks: int, data: Path) -> None:
    """Stale rows are whole, int8 is a byte for each number and eight for each row, a sample is about its share."""
    rows = sum(part.num_halo for part in _parts(data, ranks))
    exact, stale, int8, sample = (received for _, received in _on_threads(data, ranks).values())
    assert stale == rows * 8 * sum(WIDTHS)
    assert exact <= stale  # only the exact halo leaves out rows that no loss reaches
    assert int8 == rows * sum(width + 8 for width in WIDTHS)
    drawn = sample / (8 * sum(WIDTHS))
    assert drawn == int(drawn)
    assert abs(drawn - SHARE * rows) <= 5 * np.sqrt(rows * SHARE * (1 - SHARE))
