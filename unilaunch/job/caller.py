"""The caller of a launch: its signals and its terminal."""

from collections.abc import Callable

from unilaunch.job.plan import Plan
from unilaunch.job.stop import Asked
from unilaunch.monitor.inbox import Inbox
from unilaunch.record import Record


class Caller(Record):
    """The process or thread that has started a job.

    Attributes:
        asked: The signals of the user while the job runs.
        attended: Whether the user waits at the terminal: there is a live line, and typed text goes to rank 0.
        watch: Called at each start with the plan and the inbox of the agents' messages.
    """

    asked: Asked
    attended: bool
    watch: Callable[[Plan, Inbox], None]
