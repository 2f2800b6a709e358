"""Kills at random moments while checkpoints are written: how many leave one that loads.

    python benchmarks/kills.py [--kills 1000]

A process writes checkpoints of 1 MB in a loop and is killed by SIGKILL; the next goes on from the newest. Bound: all.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mpirun import verdict
from unilaunch_gcn import checkpoint
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.spec import GcnSpec

LAYERS = plan_layers(GcnSpec(hidden=128), 600, 40)
WEIGHTS = sum(layer.width_in * layer.width_out for layer in LAYERS)


def main() -> int:
    """Kill, load, and return 0 if every kill left a checkpoint that loads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    loaded, half, epoch = 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _save(checkpoint.Writer(folder, LAYERS, 2), 1)
        for _ in range(options.kills):
            child = os.fork()
            if child == 0:
                writer = checkpoint.Writer(folder, LAYERS, 2)
                for number in range(epoch + 1, 10**6):
                    _save(writer, number)
            time.sleep(draw.uniform(0.002, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            half += bool(list(folder.glob(".epoch-*")))
            state, damaged = checkpoint.newest(folder, LAYERS)
            loaded += state is not None and not damaged and state.epoch >= epoch
            epoch = state.epoch if state else 0
            for left in [*folder.glob(".epoch-*"), *sorted(folder.glob("epoch-*"))[:-2]]:
                left.unlink()
    print(f"{options.kills} kills, {half} of them in the middle of a file, {epoch} checkpoints written")
    return 0 if verdict("kills that left no checkpoint", options.kills - loaded, 0) else 1


def _save(writer: checkpoint.Writer, epoch: int) -> None:
    numbers = [*np.full((3, WEIGHTS), epoch, np.float32)]
    writer.save(checkpoint.State(numbers, epoch, [0.0] * 100, [], {}))


if __name__ == "__main__":
    sys.exit(main())
