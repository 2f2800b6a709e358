"""`unilaunch logs`: choose the log lines, fold those that are equal, and show each to a person or to a tool."""

import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import Field

from unilaunch.errors import InputError, SpecError, one_line, say
from unilaunch.folder.claim import is_held
from unilaunch.folder.files import refuse_unreadable
from unilaunch.interfaces.command import Command
from unilaunch.look.lines import LogLine, Stream, find_streams, follow, read, without_escapes
from unilaunch.look.run_folder import Ending, Run
from unilaunch.machine.limits import allow_files
from unilaunch.overriding import override
from unilaunch.record import Record, field
from unilaunch.spec.run_spec import Spec

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY = 86400.0
_FILES = 1 << 20  # open files, as many as the system allows: each rank has four
Level = Literal["TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"]
LEVELS = get_args(Level)
#: Seconds within which the same log line of several ranks is shown once.
TOGETHER = 2.0
#: Folded lines that wait for further ranks, at most: this bounds the memory, whatever the ranks write.
MOST = 10_000
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_QUIET = {"DEBUG", "INFO"}


class LogsSpec(Spec):
    """Which log lines are shown, and how."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder, or the folder that mpirun writes")
    rank: str | None = Field(default=None, description="only these ranks: 0,4-7")
    grep: str | None = Field(default=None, description="only lines in which this regular expression is found")
    level: Level = Field(
        default="TRACE", description="least level; text that is no log record has that of the record before it, or INFO"
    )
    since: str | None = Field(
        default=None, description="only lines after: 90s, 10m, 2h ago, 14:30:00, or 2026-11-21T04:32:00"
    )
    follow: bool = Field(default=False, description="go on until the job has ended")
    fold: bool = Field(default=True, description="show what several ranks write at once only once, with their number")
    as_json: bool = Field(default=False, description="one JSON object a line")


class LogsCommand(Command):
    """Show what the ranks wrote, merged in the order of time."""

    help = "show what the ranks wrote, merged in the order of time"
    examples = (
        "unilaunch logs",
        "unilaunch logs --rank 0,4-7 --level WARNING --since 10m",
        "unilaunch logs log_output --follow --grep 'warning|Error'",
        "unilaunch logs --json | jq -r 'select(.count > 1).text'",
    )
    spec = LogsSpec

    @override
    def run(self, options: LogsSpec) -> int:
        spans, since = _spans(options.rank), _since(options.since)
        test = choose(options.level, since, _pattern(options.grep))
        allow_files(_FILES)
        if options.follow:
            if not find_streams(options.folder):
                refuse_unreadable(options.folder)
                say(f"waiting for output in {options.folder}")
            lines = follow(
                Ending(options.folder),
                lambda: _of_ranks(spans, find_streams(options.folder)),
                lambda: not is_held(options.folder),
            )
        else:
            lines = read(_existing(options.folder, spans, options.rank), since)
        _write((line for line in lines if line is None or test(line)), options)
        return 0


def _existing(folder: Path, spans: list[range] | None, asked: str | None) -> list[Stream]:
    streams = find_streams(folder)
    if not streams:
        refuse_unreadable(folder)
        raise InputError(
            f"{folder}: no output of ranks: expected {folder}/rank.N/stdout, or what mpirun --output-filename "
            f"{folder} writes"
        )
    chosen = _of_ranks(spans, streams)
    if not chosen:
        raise InputError(f"--rank {asked}: no output of such a rank in {folder}, whose last is {streams[-1].rank}")
    return chosen


def _of_ranks(spans: list[range] | None, streams: list[Stream]) -> list[Stream]:
    return [stream for stream in streams if spans is None or any(stream.rank in span for span in spans)]


def _write(lines: Iterable[LogLine | None], options: LogsSpec) -> None:
    """Write the first failure, then the log lines; of a job that is followed and fails meanwhile, the failure last."""
    show = as_json if options.as_json else as_text()
    every = fold(lines) if options.fold else (FoldedLine(line, [line.rank]) for line in lines if line)
    announced = _announce(options)
    for folded in every:
        sys.stdout.write(show(folded))
    if options.follow and not announced:
        _announce(options)


def _announce(options: LogsSpec) -> bool:
    failure = "" if options.as_json else first_failure(options.folder)
    if failure:
        sys.stdout.write(f"unilaunch: {failure}\n")
    return bool(failure)


def first_failure(folder: Path) -> str:
    """Return in one line which rank failed first, why, and where its log is; "" if none did, or if that is unknown."""
    with suppress(InputError):
        if report := Run(folder).report:
            log = report.first.log
            moved = folder.absolute().joinpath(*Path(log).parts[-2:])  # the next run has moved this one's files
            where = f"; its log is {moved if log and moved.is_file() else log}" if log else ""
            return one_line(f"{report.verdict}{where}")
    return ""


def _spans(text: str | None) -> list[range] | None:
    if text is None:
        return None
    spans = []
    for word in text.split(","):
        found = re.fullmatch(r" *(\d{1,9})(?:-(\d{1,9}))? *", word)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise SpecError(f"--rank {text}: expected numbers and spans, as 0,4-7")
        spans.append(range(int(found[1]), int(found[2] or found[1]) + 1))
    return spans


def _pattern(text: str | None) -> Callable[[str], object] | None:
    if text is None:
        return None
    try:
        search = re.compile(text).search
    except re.error as error:
        raise SpecError(f"--grep {text}: no regular expression: {error}") from None
    return lambda line: search(without_escapes(line))


def _since(text: str | None) -> float:
    """Return the moment; a time of day that lies in the future is yesterday's."""
    if text is None:
        return 0.0
    now = time.time()
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd])( ago)?", text):
        return now - float(found[1]) * _UNITS[found[2]]
    is_of_day = re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d+)?)?", text)
    try:
        moment = datetime.fromisoformat(f"{time.strftime('%Y-%m-%d')}T{text}" if is_of_day else text).timestamp()
    except (ValueError, OverflowError):
        raise SpecError(f"--since {text}: expected 90s, 10m, 2h, 14:30:00 or 2026-11-21T14:30:00") from None
    return moment - _DAY if is_of_day and moment > now else moment


class FoldedLine(Record, frozen=False):
    """A log line that one or several ranks wrote.

    Attributes:
        line: That of the first rank.
        ranks: The ranks, in the order of time.
    """

    line: LogLine
    ranks: list[int] = field(default_factory=list)


class _SameText(Record, frozen=False):
    """The folded lines with one text. A line that a rank repeats starts a second one, which others may repeat too.

    Attributes:
        num_shown: Number of folded lines that have been shown.
        waiting: Those that have not, the oldest first.
        counts: How often each rank has written the text.
    """

    num_shown: int = 0
    waiting: deque[FoldedLine] = field(default_factory=deque)
    counts: dict[int, int] = field(default_factory=dict)

    def fold(self, line: LogLine) -> FoldedLine | None:
        """Add *line* to the first folded line that its rank is not in; return a new one if there is none."""
        place = max(self.counts.get(line.rank, 0), self.num_shown)
        self.counts[line.rank] = place + 1
        if place - self.num_shown < len(self.waiting):
            self.waiting[place - self.num_shown].ranks.append(line.rank)
            return None
        new = FoldedLine(line, [line.rank])
        self.waiting.append(new)
        return new


def fold(lines: Iterable[LogLine | None]) -> Iterator[FoldedLine]:
    """Return the log lines; the same line of several ranks within `TOGETHER` seconds is one. Memory is bounded.

    Args:
        lines: In the order of time. None is a pause of a followed job: no line waits for longer than two pauses.
    """
    waiting: deque[FoldedLine] = deque()
    by_text: dict[tuple[str, str, str], _SameText] = {}
    rested = 0  # how many waiting lines were already waiting at the last pause
    for line in lines:
        if line is None:
            for _ in range(rested):
                yield _take_first(waiting, by_text)
            rested = len(waiting)
            continue
        while waiting and (len(waiting) >= MOST or waiting[0].line.time < line.time - TOGETHER):
            yield _take_first(waiting, by_text)
            rested = max(0, rested - 1)
        if new := by_text.setdefault(_text(line), _SameText()).fold(line):
            waiting.append(new)
    yield from waiting


def _text(line: LogLine) -> tuple[str, str, str]:
    return line.stream, line.level, line.text


def _take_first(waiting: deque[FoldedLine], by_text: dict[tuple[str, str, str], _SameText]) -> FoldedLine:
    first = waiting.popleft()
    same = by_text[_text(first.line)]
    same.waiting.popleft()
    same.num_shown += 1
    if not same.waiting:
        del by_text[_text(first.line)]
    return first


def choose(level: Level, since: float, matches: Callable[[str], object] | None) -> Callable[[LogLine], bool]:
    """Return the test of which log lines are shown.

    A line of unknown time counts as new enough, and a level that loguru does not have as high enough.
    """
    kept = set(LEVELS[LEVELS.index(level) :])

    def test(line: LogLine) -> bool:
        return (
            (line.level in kept or line.level not in LEVELS)
            and (line.time >= since or line.number > 0)
            and (matches is None or bool(matches(line.text)))
        )

    return test


def as_json(folded: FoldedLine) -> str:
    """Return one object; its time is null if it is unknown."""
    line = folded.line
    return json.dumps({
        "time": None if line.number else round(line.time, 3), "rank": line.rank, "host": line.host,
        "stream": line.stream, "level": line.level, "text": without_escapes(line.text),
        "count": len(folded.ranks), "ranks": folded.ranks,
    }) + "\n"  # fmt: skip


def as_text() -> Callable[[FoldedLine], str]:
    """Return how a log line is shown: on a terminal with a colour for each rank, and with the rank's own colours."""
    return _coloured if _has_colours() else _plain


def _has_colours() -> bool:
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    console = Console()  # it knows NO_COLOR and dumb terminals
    return console.color_system is not None and not console.no_color


def _plain(folded: FoldedLine) -> str:
    return f"{_clock(folded)}{_name(folded)} {_level(folded)}{without_escapes(folded.line.text)}\n"


def _coloured(folded: FoldedLine) -> str:
    text = without_escapes(folded.line.text, but_colours=True)
    end = "\x1b[0m" if "\x1b" in text else ""  # a rank's colour ends with its line
    colour = _COLOURS[folded.line.rank % len(_COLOURS)]
    return f"\x1b[2m{_clock(folded)}\x1b[0m\x1b[{colour}m{_name(folded)}\x1b[0m {_level(folded)}{text}{end}\n"


def _clock(folded: FoldedLine) -> str:
    """Return the time of day; "" if it is unknown."""
    if folded.line.number:
        return ""
    second, part = divmod(folded.line.time, 1)
    return f"{_time_of_day(int(second))}.{int(part * 1000):03} "


@lru_cache(maxsize=16)
def _time_of_day(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


def _name(folded: FoldedLine) -> str:
    return f"{folded.line.host or '?'}:{folded.line.rank}" if len(folded.ranks) == 1 else f"[x{len(folded.ranks)}]"


def _level(folded: FoldedLine) -> str:
    return "" if folded.line.level in _QUIET else f"{folded.line.level} "
