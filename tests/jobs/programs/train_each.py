"""Be one rank of `unilaunch run` that trains once with each of several halos, one after the other.

Usage: train_each.py HALO,HALO run [options]
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

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


class TrainEach(GcnModel):
    """The GCN; its result is that of the last halo, and holds those of all under "halos"."""

    @override
    def run(self, options: GcnSpec, prepared: Part, session: Session, framework: Framework) -> Mapping[str, JsonValue]:
        results: dict[str, JsonValue] = {}
        last: dict[str, JsonValue] = {}
        for halo in sys.argv[1].split(","):
            training = Training.start(options.model_copy(update={"halo": halo}), prepared, session, framework)
            training.run()
            results[halo] = last = training.result()
        return {**last, "halos": results}


def _read() -> Task[RunSpec]:
    given = parse(sys.argv[2:])
    del given["command"]
    return replace(read_task(RunSpec, given, dict(os.environ)), model=TrainEach())  # noqa: TID251


if __name__ == "__main__":
    environment = dict(os.environ)  # noqa: TID251
    sys.exit(guarded(lambda report: run(_read, environment, time.monotonic(), report), environment))
