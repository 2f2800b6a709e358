"""Be one rank of `unilaunch run`, and keep the logits and weights of the training as well.

Usage: dump_training.py FOLDER run [options]
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import JsonValue
from typing_extensions import override

from unilaunch.model import Framework, Session
from unilaunch.options import parse
from unilaunch.rank.guard import guarded
from unilaunch.rank.run import run
from unilaunch.spec import RunSpec
from unilaunch.task import Task, read_task
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


def _read() -> Task[RunSpec]:
    given = parse(sys.argv[2:])
    del given["command"]
    return replace(read_task(RunSpec, given, dict(os.environ)), model=Dumping())  # noqa: TID251


if __name__ == "__main__":
    environment = dict(os.environ)  # noqa: TID251
    sys.exit(guarded(lambda report: run(_read, environment, time.monotonic(), report), environment))
