"""`unilaunch logs`."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from unilaunch.command import Command
from unilaunch.errors import SpecError
from unilaunch.logs.layouts import Stream, find_streams, first_failure, have_ended
from unilaunch.logs.lines import Line, Reader
from unilaunch.logs.story import Told, choose, fold, merge
from unilaunch.spec import Spec

_PAUSE = 0.2  # seconds between two looks at a job that runs
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class LogsSpec(Spec):
    """Which lines are shown, and how."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder, or what mpirun was told to write")
    rank: str | None = Field(default=None, description="only these ranks: 0,4-7")
    grep: str | None = Field(default=None, description="only lines in which this regular expression is found")
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="DEBUG", description="least level")
    since: str | None = Field(default=None, description="only lines after: 90s, 10m, 2h ago, or 2026-11-21T04:32:00")
    follow: bool = Field(default=False, description="go on until the job has ended")
    fold: bool = Field(default=True, description="what several ranks say at once is shown once, with their number")
    as_json: bool = Field(default=False, description="one JSON object a line")


class LogsCommand(Command):
    """Show what the ranks wrote, merged in the order of time."""

    help = "show what the ranks wrote, merged in the order of time"
    spec = LogsSpec

    @override
    def run(self, options: LogsSpec) -> int:
        test = choose(
            _ranks(options.rank), options.level, _since(options.since), _pattern(options.grep) if options.grep else None
        )
        streams = _wait_for_streams(options)
        show = _as_json if options.as_json else _as_text()
        try:
            if (failure := first_failure(options.folder)) and not options.as_json:
                sys.stdout.write(f"unilaunch: {failure}\n")
            if options.follow:
                _follow(options, test, show)
            else:
                readers = [Reader(stream) for stream in streams]
                lines = filter(test, merge(reader.lines() for reader in readers))
                _write(lines, options, show)
                for reader in readers:
                    reader.close()
        except BrokenPipeError:  # whoever reads has read enough
            sys.stdout = None  # nothing is left to flush
        return 0


def _wait_for_streams(options: LogsSpec) -> list[Stream]:
    while options.follow and not options.folder.is_dir():
        time.sleep(_PAUSE)
    return [] if options.follow else find_streams(options.folder)


def _follow(options: LogsSpec, test: Callable[[Line], bool], show: Callable[[Told], str]) -> None:
    """Show what is there and what comes, also of ranks that begin later, until the job has ended."""
    readers: dict[Path, Reader] = {}
    ended = False
    while True:
        ended = have_ended(options.folder)
        for path in options.folder.glob("rank.*/std*"):
            if path not in readers:
                readers |= {
                    stream.path: Reader(stream) for stream in find_streams(options.folder) if stream.path == path
                }
        lines = [line for reader in readers.values() for line in reader.lines(whole=ended)]
        _write(filter(test, sorted(lines, key=lambda line: line.time)), options, show)
        sys.stdout.flush()
        if ended:
            break
        time.sleep(_PAUSE)
    for reader in readers.values():
        reader.close()
    if (failure := first_failure(options.folder)) and not options.as_json:
        sys.stdout.write(f"unilaunch: {failure}\n")


def _write(lines: Iterable[Line], options: LogsSpec, show: Callable[[Told], str]) -> None:
    told: Iterator[Told] = fold(lines) if options.fold else (Told(line, [line.rank]) for line in lines)
    write = sys.stdout.write
    for one in told:
        write(show(one))


def _as_json(told: Told) -> str:
    line = told.line
    return json.dumps({
        "time": round(line.time, 3), "rank": line.rank, "ranks": told.ranks, "count": len(told.ranks),
        "host": line.host, "stream": line.stream, "level": line.level, "text": line.text,
    }) + "\n"  # fmt: skip


def _as_text() -> Callable[[Told], str]:
    """Return how a line is shown: with a colour for each rank where that can be seen."""
    coloured = False
    if sys.stdout.isatty():
        from rich.console import Console

        coloured = Console().color_system is not None  # it knows NO_COLOR and dumb terminals

    def show(told: Told) -> str:
        line = told.line
        clock = time.strftime("%H:%M:%S", time.localtime(line.time)) + f".{int(line.time % 1 * 1000):03}"
        name = f"{line.host or '?'}:{line.rank}" if len(told.ranks) == 1 else f"[x{len(told.ranks)}]"
        level = f"{line.level} " if line.level not in {"INFO", "DEBUG"} else ""
        if not coloured:
            return f"{clock} {name} {level}{line.text}\n"
        return f"\x1b[2m{clock}\x1b[0m \x1b[{_COLOURS[line.rank % len(_COLOURS)]}m{name}\x1b[0m {level}{line.text}\n"

    return show


def _ranks(text: str | None) -> set[int] | None:
    if text is None:
        return None
    try:
        spans = [[int(end) for end in word.split("-")] for word in text.split(",")]
    except ValueError:
        raise SpecError(f"--rank {text}: expected numbers and spans, as 0,4-7") from None
    return {rank for span in spans for rank in range(span[0], span[-1] + 1)}


def _pattern(text: str) -> Callable[[str], object]:
    try:
        return re.compile(text).search
    except re.error as error:
        raise SpecError(f"--grep {text}: no regular expression: {error}") from None


def _since(text: str | None) -> float:
    if text is None:
        return 0.0
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return time.time() - float(found[1]) * _UNITS[found[2]]
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            text = f"{time.strftime('%Y-%m-%d')}T{text}"
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise SpecError(f"--since {text}: expected 90s, 10m, 2h, 14:30:00 or 2026-11-21T14:30:00") from None
