"""A model of another distribution, in plain Python: it halves a number in each step."""

import os
import signal
from typing import Any, Literal

from typing_extensions import override

from unilaunch.interfaces.model import Model, Session
from unilaunch.interfaces.report_layout import Plot, ReportLayout, Value
from unilaunch.interfaces.step import Step
from unilaunch.spec.run_spec import Spec

STEPS = 4


class DescentSpec(Spec):
    """How it is to end."""

    ending: Literal["well", "nan", "killed"] = "well"


class Descent(Model):
    """Notes steps with figures, some of which are no numbers, and records each height."""

    name = "descent"
    examples = ("descent --ending well",)
    spec = DescentSpec
    plots = (Plot("Height", (Value("height", "height"),)),)
    report = ReportLayout(step="batch", plots=plots, figures=(Value("lowest", "lowest height"),))

    @override
    def check(self, options: Any, world_size: int) -> None:
        """Do nothing: any number of ranks will do."""

    @override
    def prepare(self, options: Any, session: Session) -> None:
        """Do nothing: there is no input."""

    @override
    def run(self, options: Any, prepared: None, session: Session, framework: Any) -> dict[str, float]:
        height = 1.0
        for number in range(1, STEPS + 1):
            figures = {"height": height, "loss": None, "norm": float("nan")}
            session.progress(Step("batch", number, STEPS, figures, float("inf")))
            height /= 2
            session.output.record(batch=number, height=height)
        if options.ending == "killed" and session.world.rank == session.world.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        session.peers.share(None)
        return {"lowest": float("nan") if options.ending == "nan" else height}
