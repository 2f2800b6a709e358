"""The result of a launch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unilaunch.errors import UnilaunchError, one_line
from unilaunch.folder.failure import Failure
from unilaunch.json_value import JsonValue
from unilaunch.record import Record


class JobFailed(UnilaunchError):  # noqa: N818  (like the exceptions of concurrent.futures, it names what happened)
    """A job has failed or was stopped.

    Attributes:
        failure: The failure of the rank that failed first: cause, rank, host, phase, exit code, log and traceback. None
            if no rank failed, since the job was stopped or the launcher itself failed.
        result: How the whole job ended.
    """

    def __init__(self, result: "LaunchResult") -> None:
        super().__init__(_describe(result))
        self.result: LaunchResult = result
        self.failure: Failure | None = result.failure
        self.exit_code: int = result.returncode


def _describe(result: "LaunchResult") -> str:
    failure = result.failure
    if result.interrupted:
        return f"the job was stopped (exit code {result.returncode}); its output is in {result.output_dir}"
    if failure is None:
        return f"the job ended with exit code {result.returncode}; its output is in {result.output_dir}"
    log = f"; its log is {failure.log}" if failure.log else ""
    return one_line(f"{result.verdict}{log}")


class RankResult(Record):
    """How one rank ended.

    Attributes:
        rank: Its number.
        host: The host that it ran on; "?" if it ended before it reported that.
        device: Its device; "?" likewise.
        returncode: Its exit code; None if it was ended before it exited by itself.
        log_dir: Its log folder, on its host.
        value: The value of its function: JSON, numpy arrays and tensors; None for a model or a script.
    """

    rank: int
    host: str
    device: str
    returncode: int | None
    log_dir: Path
    value: Any


class LaunchResult(Record):
    """How a job ended.

    Attributes:
        returncode: 0, or the exit code of the rank that failed first (128 + N for signal N).
        ranks: How each rank ended, by rank.
        failure: The root cause: the failure of the rank that failed first; None if no rank failed.
        output_dir: The output folder.
        result: The model's result; None for a program.
        verdict: One line: which rank failed first, or that all ranks failed, and why; "" if no rank failed.
        lost_hosts: The hosts that were lost, under the names that the user gave them, or else under their own.
        interrupted: Whether the user ended the job.
    """

    returncode: int
    ranks: Sequence[RankResult]
    failure: Failure | None
    output_dir: Path
    result: Mapping[str, JsonValue] | None
    verdict: str = ""
    lost_hosts: Sequence[str] = ()
    interrupted: bool = False

    def raise_if_failed(self) -> None:
        """Raise JobFailed if the job has failed or was stopped."""
        if self.returncode:
            raise JobFailed(self)
