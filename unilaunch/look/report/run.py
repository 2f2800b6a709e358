"""The content of a run's output folder as values, rank by rank."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from unilaunch.folder.failure import Failure
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.record import Record, field

LARGEST = 1e300  # of a figure in a chart or a mean: differences and sums of larger ones overflow
#: A figure in a file.
Figure = Annotated[int | float, Field(ge=-LARGEST, le=LARGEST)]


class Event(BaseModel):
    """A line of `events.jsonl`; `extra` holds a model's fields."""

    model_config = ConfigDict(extra="allow")
    time: Figure | None = None
    phase: str | None = None
    host: str | None = None
    device: str | None = None
    exit_code: int | None = None
    command: list[str] = []
    versions: dict[str, str] = {}


class UsageRow(BaseModel):
    """A line of `usage.jsonl`: processor seconds so far, and the memory in bytes; in the last line its peak."""

    time: Figure
    cpu: Figure
    memory: int | None = None
    peak: int | None = None


class Result(BaseModel):
    """`result.json`; `extra` holds a model's figures."""

    model_config = ConfigDict(extra="allow")
    model: Any = None  # a program's result may have other things of these names
    versions: Any = None

    @property
    def figures(self) -> dict[str, Any]:
        """The model's figures, by name."""
        return self.model_extra or {}

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Each rank's figures, if the model returns them."""
        rows = self.figures.get("ranks")
        return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else []


class Group(BaseModel):
    """Ranks with the same failure, or with the same stack."""

    ranks: list[int]
    what: str = ""
    where: str = ""
    stack: str = ""


class Report(BaseModel):
    """`report.json`."""

    verdict: str
    first: Failure
    consequences: list[Group] = []
    stacks: list[Group] = []


class Settings(BaseModel):
    """`spec.json`; its other fields are `extra`. Only a model's has `options`."""

    model_config = ConfigDict(extra="allow")
    target: str | None = None
    options: dict[str, Any] | None = None


class RankRun(Record):
    """What one rank has left.

    Attributes:
        rank: Its number.
        host: Where it ran; "?" if unknown.
        device: Its device; "?" if unknown.
        exit_code: None if it has not ended, or if that is unknown.
        series: Each step's figures, by name.
        events: The events of the rank.
        failure: How it failed; None if it did not.
        warnings: Lines of its log from WARNING up.
        usage: What it used, over time.
        sizes: How many bytes it had written, over time (seconds since 1970).
        last: The end of what it wrote.
    """

    rank: int
    host: str
    device: str
    exit_code: int | None
    series: Sequence[Mapping[str, int | float]] = field(default_factory=list)
    events: Sequence[Event] = field(default_factory=list)
    failure: Failure | None = None
    warnings: Sequence[str] = field(default_factory=list)
    usage: Sequence[UsageRow] = field(default_factory=list)
    sizes: Sequence[tuple[float, int]] = field(default_factory=list)
    last: Sequence[str] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """The times of its events, in seconds since 1970."""
        noted = [event.time for event in self.events if event.time is not None]
        return [*noted, *(row.time for row in self.usage), *(time for time, _ in self.sizes)]


class Run(Record):
    """What a run has left.

    Attributes:
        target: The model, or the program; "run" if unknown.
        layout: The layout of the page.
        missing: Why it is not the layout that the model defines; "" if it is.
        facts: Every number and text of its spec and of its result, by name.
        options: What its spec says, by name: the program's arguments, and every option that has a value.
        result: Its result; empty for a program, and of a run that failed or goes on.
        report: How it failed; None if it did not.
        ranks: In their order.
    """

    target: str
    layout: ReportLayout
    missing: str
    facts: dict[str, str | int | float]
    result: Result
    report: Report | None
    ranks: list[RankRun]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def began(self) -> float | None:
        """When it began, in seconds since 1970; None if unknown."""
        return min((time for rank in self.ranks for time in rank.times), default=None)

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far; None if unknown."""
        last = max((time for rank in self.ranks for time in rank.times), default=None)
        return None if last is None or self.began is None else last - self.began

    @property
    def command(self) -> Sequence[str]:
        """The command line, from rank 0's events."""
        return next((event.command for rank in self.ranks for event in rank.events if event.command), [])

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of each library that is known."""
        noted = {name: version for event in self.ranks[0].events for name, version in event.versions.items()}
        own = self.result.versions if isinstance(self.result.versions, dict) else {}
        return noted | {str(name): str(version) for name, version in own.items()}
