"""Be one rank of `unilaunch run`, and keep the logits and weights of the training as well.

Usage: dump_training.py FOLDER run [options]
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import JsonValue
from typing_extensions import override

from unilaunch import cli
from unilaunch.model import Framework, Session
from unilaunch.rank.run import run
from unilaunch.rank.task import Task, read_task
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.partition import Part
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.training import Training


class Dumping(GcnModel):
    """The GCN, whose ranks each write owned ids and logits, and rank 0 the weights."""

    @override
    def run(self, options: GcnSpec, prepared: Part, session: Session, framework: Framework) -> Mapping[str, JsonValue]:
        training = Training.start(options, prepared, session, framework)
        training.run()
        folder = Path(sys.argv[1])
        folder.mkdir(exist_ok=True)
        weights = {f"weight_{depth}": weight for depth, weight in enumerate(training.network.weights())}
        np.savez(
            folder / f"rank.{session.world.rank}.npz",
            owned=np.array(prepared.owned),
            logits=training.network.logits(),
            **weights,
        )
        return training.result()


def _read(world_size: int) -> Task:
    task = read_task(cli.parse(sys.argv[2:]), dict(os.environ), world_size)  # noqa: TID251
    return Task(task.spec, Dumping(), task.options, task.backend)


if __name__ == "__main__":
    sys.exit(run(_read, dict(os.environ), time.monotonic()))  # noqa: TID251
