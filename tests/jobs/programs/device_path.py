"""The collectives that a device has, over gloo on cpu tensors, and those over MPI: the same numbers.

What a GPU would run (rendezvous, process group, tensors through the collectives) runs here for real; only the device's
name differs. The ranks exchange unequally many rows.
"""

import os
import sys
from typing import Any

import numpy as np
import torch

from unilaunch import launchers
from unilaunch.interfaces.backend import Collectives, Placement
from unilaunch.interfaces.world import count_world
from unilaunch.rendezvous import mpi
from unilaunch.rendezvous.rendezvous import meet
from unilaunch.spec.run_spec import RunSpec
from unilaunch_torch.backend import TorchBackend


def main() -> None:
    """Compare the two."""
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
    host = _results(peers.collectives(), world.rank, world.size, np.asarray)
    device = _results(gloo, world.rank, world.size, torch.from_numpy)
    for expected, array in zip(host, device, strict=True):
        np.testing.assert_array_equal(array, expected)
    backend.stop()
    if world.rank == 0:
        sys.stdout.write(f"{rendezvous.interface} the same\n")


def _rows(source: int, target: int) -> int:
    return 0 if source == target else source + 2 * target


def _results(collectives: Collectives, rank: int, size: int, made: Any) -> list[Any]:
    """Return what each collective leaves in its buffer, *made* of an array."""
    total, told = np.arange(5.0) * (rank + 1), np.full(3, float(rank))
    collectives.all_reduce(made(total))
    collectives.broadcast(made(told), 1)
    counts = [_rows(rank, peer) for peer in range(size)], [_rows(peer, rank) for peer in range(size)]
    sent = np.repeat(np.array([[rank, peer] for peer in range(size)], float), counts[0], axis=0)
    received = np.empty((sum(counts[1]), 2))
    collectives.exchange(made(sent), counts[0], made(received), counts[1]).wait()
    collectives.barrier()
    return [total, told, received]


if __name__ == "__main__":
    main()
