"""What a plug-in implements to be told the numbers of a job while the job runs: `launch --observe NAME=WHERE`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unilaunch.errors import SpecError
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.record import Record


class Observed(Record):
    """A job, as an observer sees it. Its functions may be called in any thread.

    Attributes:
        name: The name of the output folder.
        environ: The environment of the job.
        options: The options of the model; empty for a program.
        layout: The name of a step, and the file with the model's numbers.
        find: Returns the folder of rank 0's records; None while there is none.
        snapshot: Returns the state of the job at this moment, as `unilaunch status --json` shows it.
        exit_codes: Returns the exit code of each rank; None for a rank that runs.
        say: Shows the user one line.
    """

    name: str
    environ: Mapping[str, str]
    options: Mapping[str, Any]
    layout: ReportLayout
    find: Callable[[], Path | None]
    snapshot: Callable[[], Mapping[str, Any]]
    exit_codes: Callable[[], set[int | None]]
    say: Callable[[str], None]


class Observer(ABC):
    """An observer. An entry point in the group "unilaunch.observers" names a subclass; its name is NAME."""

    #: Whether it shows the numbers of a model's steps: a program writes its own.
    of_models = False

    def check(self, where: str) -> None:  # noqa: B027  (most cannot tell before the start)
        """Raise an error if *where* cannot be right.

        Raises:
            SpecError: It is wrong.
        """

    @abstractmethod
    def observing(self, where: str, job: Observed) -> AbstractContextManager[None]:
        """Return the context in which the job runs. The job's end waits for the end of the context.

        Args:
            where: What the user has typed behind NAME=.
            job: The job.

        Raises:
            UnilaunchError: The job cannot be observed.
        """


def check_url(where: str) -> None:
    """Raise an error if *where* is no address of a server.

    Raises:
        SpecError: It is none.
    """
    with suppress(ValueError):  # the port is no number, or too large
        parts = urlsplit(where)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return
    raise SpecError("must be an address, such as http://HOST:4318")
