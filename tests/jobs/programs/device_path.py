"""Train with the device network on cpu tensors over gloo, and with the host network over MPI: the same losses."""

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
from unilaunch.interfaces.backend import Placement
from unilaunch.interfaces.model import Framework, Session
from unilaunch.interfaces.world import count_world
from unilaunch.rendezvous import mpi
from unilaunch.rendezvous.rendezvous import meet
from unilaunch.spec.run_spec import RunSpec
from unilaunch_gcn import training
from unilaunch_gcn.device import device_network
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_device import TorchDeviceTensors
from unilaunch_gcn.training import Training
from unilaunch_graph.partition.preparation import prepare_part
from unilaunch_torch.backend import TorchBackend


def load_device_network(framework: Framework, placement: Placement, config: Any, part: Any, meter: Any) -> Any:
    return device_network(config, part, TorchDeviceTensors(placement.device), framework.collectives, meter)


found = launchers.detect(dict(os.environ))
os.environ.update(mpi.variables(found, dict(os.environ)))
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

# A graph with 20 sparse features: fewer than a wide hidden layer has columns.
draw = np.random.default_rng(0)
of_node = np.sort(draw.permuted(np.tile(np.arange(20), (400, 1)), axis=1)[:, :5])
x: dict[str, Any] = {"x_indptr": np.arange(401) * 5, "x_indices": of_node.ravel()}
x |= {"x_data": draw.random(2000, np.float32), "x_shape": np.array([400, 20])}
own = Path(f"{os.getpid()}.npz")  # every rank writes the same
np.savez(own, edge_index=draw.integers(0, 400, (2, 1500)), y=np.arange(400) % 3, **x)
small = str(own.rename("small.npz"))

wide: dict[str, Any] = {"dataset": small, "hidden": 24, "layers": 3}
columns: dict[str, Any] = {"parallel": "tensor", "conv": "sage", "hidden": 7}
load_host_network = training.load_network
for changed in ({}, {"dataset": small, "dropout": 0.0}, wide, columns):  # each order of the layers' products
    options = GcnSpec(data_dir=Path("data"), precision="float64", epochs=3, **changed)
    part = prepare_part(options, session)
    trained = []
    for collectives, load in ((peers.collectives(), load_host_network), (gloo, load_device_network)):
        training.load_network = load
        trained.append(Training(options, part, session, Framework(backend, collectives)))
        trained[-1].run()
    host, device = trained
    np.testing.assert_allclose(device.losses, host.losses, rtol=0, atol=1e-10)
    assert device.epochs.received >= host.epochs.received  # the host leaves out rows that no loss reaches
    assert device.evaluations[-1]["test_accuracy"] == host.evaluations[-1]["test_accuracy"]
backend.stop()
if world.rank == 0:
    sys.stdout.write(f"{rendezvous.interface} the same\n")
