"""How a log line is shown: to a person, with colours or without, or to a tool."""

import json
import re
import sys
import time
from collections.abc import Callable
from functools import lru_cache

from unilaunch.look.logs.merging import FoldedLine

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
#: Control sequences of a terminal (ECMA-48): colours and cursor moves, titles and links, all others; and single control
#: characters other than a tab and the end of a line.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
_QUIET = {"DEBUG", "INFO"}


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


def without_escapes(text: str) -> str:
    """Return *text* without control sequences."""
    return text if text.isprintable() else _ESCAPE.sub("", text)


def _with_colours(text: str) -> str:
    """Return *text* without control sequences other than colours: a cursor that moves would overwrite other lines."""
    return _ESCAPE.sub(lambda found: found[0] if _COLOUR.fullmatch(found[0]) else "", text)


def _has_colours() -> bool:
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    console = Console()  # it knows NO_COLOR and dumb terminals
    return console.color_system is not None and not console.no_color


def _plain(folded: FoldedLine) -> str:
    return f"{_clock(folded)}{_name(folded)} {_level(folded)}{without_escapes(folded.line.text)}\n"


def _coloured(folded: FoldedLine) -> str:
    text = _with_colours(folded.line.text)
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
