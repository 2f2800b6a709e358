"""What a launch comes back with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilaunch.errors import UnilaunchError, one_line
from unilaunch.json_value import JsonValue
from unilaunch.output.failure import Failure


class JobFailed(UnilaunchError):  # noqa: N818  (as concurrent.futures names its own: what has happened)
    """A job has not ended well.

    Attributes:
        failure: How the rank failed that failed first: cause, rank, host, phase, exit code, log and traceback; None if
            no rank did: the job was stopped, or the launcher itself failed.
        result: How the whole job ended.
    """

    def __init__(self, result: "LaunchResult") -> None:
        super().__init__(_describe(result))
        self.result, self.failure, self.exit_code = result, result.failure, result.returncode


def _describe(result: "LaunchResult") -> str:
    failure = result.failure
    if result.interrupted:
        return f"the job was stopped (exit code {result.returncode}); its output is in {result.output_dir}"
    if failure is None:
        return f"the job ended with exit code {result.returncode}; its output is in {result.output_dir}"
    where = "the job" if failure.rank is None else f"rank {failure.rank} on {failure.host}"
    what = f"{failure.error}: {failure.message}" if failure.error else failure.message
    log = f"; its log is {failure.log}" if failure.log else ""
    return one_line(f"{where} failed first: {what} (exit code {failure.exit_code}){log}")


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank ended.

    Attributes:
        rank: Which.
        host: Where it ran; "?" if it did not live to say.
        device: On what; "?" likewise.
        returncode: What it exited with; None if it was ended before it could say.
        log_dir: Its log folder, on its host.
        value: What its function returned: JSON, numpy arrays and tensors; None for a model or a script.
    """

    rank: int
    host: str
    device: str
    returncode: int | None
    log_dir: Path
    value: Any


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How a job ended.

    Attributes:
        returncode: 0, or the exit code of the rank that failed first (128 + N for signal N).
        ranks: How each rank ended, by rank.
        failure: The root cause, how the rank failed that failed first; None if none did.
        output_dir: The output folder.
        result: The model's result; None for a program.
        lost_hosts: The hosts that fell silent, under the names that the job was given.
        interrupted: The user ended it.
    """

    returncode: int
    ranks: Sequence[RankResult]
    failure: Failure | None
    output_dir: Path
    result: Mapping[str, JsonValue] | None
    lost_hosts: Sequence[str] = ()
    interrupted: bool = False

    def raise_if_failed(self) -> None:
        """Raise JobFailed if the job has not ended well."""
        if self.returncode:
            raise JobFailed(self)
