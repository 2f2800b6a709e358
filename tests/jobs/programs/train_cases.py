"""Be one rank of `unilaunch run`, and train every case in one start: train_cases.py CASES.json run [common options].

CASES.json: {name: [options]}. Each leaves NAME/result.json and of every rank NAME/rank.N.npz: ids, logits and weights.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

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


class Cases(GcnModel):
    @override
    def prepare(self, options: GcnSpec, session: Session) -> Any:
        return None  # each case has its own

    @override
    def run(self, options: Any, prepared: Any, session: Session, framework: Framework) -> Mapping[str, JsonValue]:
        import numpy as np

        from unilaunch_gcn.training import Training

        for name, words in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
            task = read([*sys.argv[2:], *words])
            chosen = cast("GcnSpec", task.options)
            self.check(chosen, session.world.size)
            own = replace(session, seed=task.spec.seed)
            part = super().prepare(chosen, own)
            training = Training(chosen, part, own, framework)
            training.run()
            (folder := Path(name)).mkdir(exist_ok=True)
            weights = {f"weight_{depth}": weight for depth, weight in enumerate(training.network.weights())}
            logits = training.network.logits()
            np.savez(folder / f"rank.{session.world.rank}.npz", owned=np.array(part.owned), logits=logits, **weights)
            result = json.dumps(training.result())
            if session.world.rank == 0:
                (folder / "result.json").write_text(result, encoding="utf-8")
        return {}


def read(words: list[str]) -> Task[RunSpec]:
    return replace(read_task(RunSpec, parse(words), dict(os.environ)), model=Cases())


def train(status: Status) -> int:
    from unilaunch.rank.run import run

    return run(lambda: read(sys.argv[2:]), dict(os.environ), status)


sys.exit(supervise(dict(os.environ), train))
