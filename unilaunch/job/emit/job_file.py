"""Job files by entry point: each writes what a plan says in the form of another engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from unilaunch import entry_points
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
        SpecError: The plan cannot be written in this form.
        PluginError: There is no such form.
    """
    form: JobFile = entry_points.make(entry_points.JOB_FILES, "job file", kind)
    return "\n".join(form.lines(plan)) + "\n"
