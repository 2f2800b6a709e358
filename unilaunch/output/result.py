"""What a launch comes back with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unilaunch.json_value import JsonValue
from unilaunch.output.failure import Failure


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank ended.

    Attributes:
        rank: Which.
        host: Where it ran; "?" if it did not live to say.
        device: On what; "?" likewise.
        returncode: What it exited with; None if it was ended before it could say.
        log_dir: Its log folder, on its host.
        value: What its function returned; None for a model or a script.
    """

    rank: int
    host: str
    device: str
    returncode: int | None
    log_dir: Path
    value: JsonValue


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
