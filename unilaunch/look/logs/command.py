"""`unilaunch logs`."""

import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from unilaunch.errors import InputError, SpecError, say
from unilaunch.folder.claim import is_held
from unilaunch.folder.files import refuse_unreadable
from unilaunch.interfaces.command import Command
from unilaunch.look.logs.ending import Ending, first_failure
from unilaunch.look.logs.follow import follow, read
from unilaunch.look.logs.layouts import Stream, find_streams
from unilaunch.look.logs.lines import LogLine
from unilaunch.look.logs.merging import FoldedLine, choose, fold
from unilaunch.look.logs.show import as_json, as_text, without_escapes
from unilaunch.machine.limits import allow_files
from unilaunch.overriding import override
from unilaunch.spec.run_spec import Spec

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY = 86400.0
_FILES = 1 << 20  # open files, as many as the system allows: each rank has four


class LogsSpec(Spec):
    """Which log lines are shown, and how."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder, or the folder that mpirun writes")
    rank: str | None = Field(default=None, description="only these ranks: 0,4-7")
    grep: str | None = Field(default=None, description="only lines in which this regular expression is found")
    level: Literal["TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"] = Field(
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
