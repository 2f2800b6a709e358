"""Be one rank of `unilaunch run`, and train every case in one start, each as a run of its own would.

Usage: train_cases.py CASES run [options that every case has]

CASES is a JSON file: {name: [options, as words]}. Each case leaves NAME/result.json and, of every rank, NAME/rank.N.npz
with its nodes' ids, their logits and the network's weights.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue
from typing_extensions import override

from unilaunch.agent.under_launcher import supervise
from unilaunch.interfaces.model import Framework, Session
from unilaunch.rank.status import Status
from unilaunch.spec.options import parse
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec
from unilaunch.spec.task import Task
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.spec import GcnSpec

if TYPE_CHECKING:
    from unilaunch_gcn.training import Training
    from unilaunch_graph.partition.part import Part


class Cases(GcnModel):
    """The GCN, once for every case."""

    @override
    def prepare(self, options: GcnSpec, session: Session) -> "Part":
        return cast("Part", None)  # each case has its own

    @override
    def run(
        self, options: GcnSpec, prepared: "Part", session: Session, framework: Framework
    ) -> Mapping[str, JsonValue]:
        from unilaunch_gcn.training import Training

        for name, words in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
            task = _read([*sys.argv[2:], *words])
            chosen = cast("GcnSpec", task.options)
            self.check(chosen, session.world.size)
            own = replace(session, seed=task.spec.seed)
            part = super().prepare(chosen, own)
            training = Training(chosen, part, own, framework)
            training.run()
            _keep(Path(name), training, part, session.world.rank)
        return {}


def _keep(folder: Path, training: "Training", part: "Part", rank: int) -> None:
    import numpy as np

    folder.mkdir(exist_ok=True)
    weights = {f"weight_{depth}": weight for depth, weight in enumerate(training.network.weights())}
    logits = training.network.logits()
    np.savez(folder / f"rank.{rank}.npz", owned=np.array(part.owned), logits=logits, **weights)
    result = json.dumps(training.result())
    if rank == 0:
        (folder / "result.json").write_text(result, encoding="utf-8")


def _read(words: list[str]) -> Task[RunSpec]:
    return replace(read_task(RunSpec, parse(words), dict(os.environ)), model=Cases())  # noqa: TID251


def _run(status: Status) -> int:
    from unilaunch.rank.run import run

    return run(lambda: _read(sys.argv[2:]), dict(os.environ), status)  # noqa: TID251


if __name__ == "__main__":
    sys.exit(supervise(dict(os.environ), _run))  # noqa: TID251
