"""Whoever has launched a job, as the job sees them."""

from collections.abc import Callable
from dataclasses import dataclass

from unilaunch.job.plan import Plan
from unilaunch.job.stop import Asked
from unilaunch.monitor.inbox import Inbox


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever has launched a job.

    Attributes:
        asked: What they ask of it while it runs.
        attended: They wait at the terminal: there is a live line, and what is typed goes to rank 0.
        watch: Called at each start, with the plan and with where the agents' messages come in.
    """

    asked: Asked
    attended: bool
    watch: Callable[[Plan, Inbox], None]
