"""Job files by entry point: each writes what a plan says in the form of another engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from unilaunch import entry_points
from unilaunch.errors import SpecError
from unilaunch.job.plan import Plan


class JobFile(ABC):
    """A form of job file. An entry point in the group "unilaunch.jobfiles" names it, and `--emit` takes that name."""

    @abstractmethod
    def lines(self, plan: Plan) -> Iterator[str]:
        """Give the file's lines.

        Raises:
            SpecError: The plan cannot be written in this form.
        """


def emit(plan: Plan, kind: str) -> str:
    """Return the job file of *kind*.

    Raises:
        SpecError: The plan cannot be written in this form, or asks for what only `launch` does.
        PluginError: There is no such form.
    """
    if restarts := plan.task.spec.max_restarts:
        raise SpecError(
            f"--emit {kind} --max-restarts {restarts}: only launch starts a job again: leave it out, or start launch "
            "itself from a job file of your own"
        )
    form: JobFile = entry_points.make(entry_points.JOB_FILES, "job file", kind)
    return "\n".join(form.lines(plan)) + "\n"
