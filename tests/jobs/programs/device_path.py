"""Train with the device network on cpu tensors over gloo, and with the host network over MPI: the same losses.

What a GPU would run (rendezvous, process group, tensors through the collectives, masks and sparse products in torch)
runs here for real; only the device's name differs.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401  (the first thing that is imported, so that one import serves all ranks)

from unilaunch import launchers
from unilaunch.folder.folder import OutputFolder
from unilaunch.folder.log import Log
from unilaunch.interfaces.backend import Placement, TensorCollectives
from unilaunch.interfaces.model import Framework, Session
from unilaunch.interfaces.world import count_world
from unilaunch.rendezvous import mpi
from unilaunch.rendezvous.rendezvous import meet
from unilaunch.spec.run_spec import RunSpec
from unilaunch_gcn import training
from unilaunch_gcn.device import device_network
from unilaunch_gcn.layers import NetworkConfig
from unilaunch_gcn.network import Network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.training import Training
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.preparation import prepare_part
from unilaunch_torch.backend import TorchBackend

#: How a training makes its network; a training over gloo makes a device network instead.
LOAD_NETWORK = training.load_network


def main() -> None:
    """Compare the two paths, for each order of the layers' products, and by columns."""
    environ = dict(os.environ)  # noqa: TID251
    found = launchers.detect(environ)
    os.environ.update(mpi.variables(found, environ))  # noqa: TID251
    peers = mpi.join(found)
    world = count_world(found, ["here"] * found.size, "here")
    placement = Placement("cpu", 0, 1)
    rendezvous = meet(peers, world, RunSpec())
    backend = TorchBackend()
    backend.start(world, placement)
    gloo = backend.connect(world, placement, rendezvous, 60)
    output = OutputFolder(Path(tempfile.mkdtemp()), world.rank, world.size, "run")
    output.open()
    session = Session(world, placement, peers, output, Log(), seed=5)
    small = _write_graph(Path("small.npz"))
    wide: dict[str, Any] = {"dataset": small, "hidden": 24, "layers": 3}
    columns: dict[str, Any] = {"parallel": "tensor", "conv": "sage", "hidden": 7}
    for changed in ({}, {"dataset": small, "dropout": 0.0}, wide, columns):
        options = GcnSpec(data_dir=Path("data"), precision="float64", epochs=3, **changed)
        part = prepare_part(options, session)
        host, device = (
            _train(options, part, session, Framework(backend, path)) for path in (peers.collectives(), gloo)
        )
        np.testing.assert_allclose(device.losses, host.losses, rtol=0, atol=1e-10)
        assert device.epochs.received >= host.epochs.received  # the host leaves out rows that no loss reaches
        assert device.evaluations[-1]["test_accuracy"] == host.evaluations[-1]["test_accuracy"]
    backend.stop()
    if world.rank == 0:
        sys.stdout.write(f"{rendezvous.interface} the same\n")


def _write_graph(path: Path) -> str:
    """Write a graph with 20 sparse features: fewer than a wide hidden layer has columns."""
    draw = np.random.default_rng(0)
    of_node = np.sort(draw.permuted(np.tile(np.arange(20), (400, 1)), axis=1)[:, :5])
    x: dict[str, Any] = {"x_indptr": np.arange(401) * 5, "x_indices": of_node.ravel()}
    x |= {"x_data": draw.random(2000, np.float32), "x_shape": np.array([400, 20])}
    own = path.with_name(f"{os.getpid()}.npz")  # every rank writes the same
    np.savez(own, edge_index=draw.integers(0, 400, (2, 1500)), y=np.arange(400) % 3, **x)
    return str(own.rename(path))


def _train(options: GcnSpec, part: Part, session: Session, framework: Framework) -> Training:
    """Train on the device network where the collectives are gloo's."""

    def load_device_network(
        framework: Framework, placement: Placement, config: NetworkConfig, part: Part, meter: Meter
    ) -> Network:
        tensors = TorchDeviceTensors(placement.device)
        return device_network(config, part, tensors, framework.collectives, meter)

    over_gloo = isinstance(framework.collectives, TensorCollectives)
    training.load_network = load_device_network if over_gloo else LOAD_NETWORK
    trained = Training(options, part, session, framework)
    trained.run()
    return trained


if __name__ == "__main__":
    main()
