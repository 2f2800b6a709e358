"""Which job files there are."""

from collections.abc import Callable, Iterator
from importlib import import_module

from unilaunch.job.plan import Plan

#: Each has a module of its name with `lines(plan)`.
FORMATS = ("sbatch", "mpijob", "rankfile")


def emit(plan: Plan, kind: str) -> str:
    """Return the job file of *kind*.

    Raises:
        SpecError: The plan cannot be written in this form.
    """
    lines: Callable[[Plan], Iterator[str]] = import_module(f"unilaunch.job.emit.{kind}").lines
    return "\n".join(lines(plan)) + "\n"
