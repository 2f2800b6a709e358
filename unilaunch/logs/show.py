"""How a line is shown: to a person, with colours or without, or to a tool."""

import json
import re
import sys
import time
from collections.abc import Callable
from functools import lru_cache

from unilaunch.logs.story import Told

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
#: What a terminal obeys instead of showing it (ECMA-48): colours and cursor moves, titles and links, all others.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_QUIET = {"DEBUG", "INFO"}


def as_json(told: Told) -> str:
    """Return one object; its time is null where nobody knows it."""
    line = told.line
    return json.dumps({
        "time": None if line.number else round(line.time, 3), "rank": line.rank, "host": line.host,
        "stream": line.stream, "level": line.level, "text": without_escapes(line.text),
        "count": len(told.ranks), "ranks": told.ranks,
    }) + "\n"  # fmt: skip


def as_text() -> Callable[[Told], str]:
    """Return how a line is shown: with a colour for each rank, and with the rank's own, where they can be seen."""
    return _coloured if _has_colours() else _plain


def without_escapes(text: str) -> str:
    """Return *text* without what a terminal would not show."""
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def _has_colours() -> bool:
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    console = Console()  # it knows NO_COLOR and dumb terminals
    return console.color_system is not None and not console.no_color


def _plain(told: Told) -> str:
    return f"{_clock(told)}{_name(told)} {_level(told)}{without_escapes(told.line.text)}\n"


def _coloured(told: Told) -> str:
    text = told.line.text
    end = "\x1b[0m" if "\x1b" in text else ""  # a rank's colour ends with its line
    colour = _COLOURS[told.line.rank % len(_COLOURS)]
    return f"\x1b[2m{_clock(told)}\x1b[0m\x1b[{colour}m{_name(told)}\x1b[0m {_level(told)}{text}{end}\n"


def _clock(told: Told) -> str:
    """Return the time of day; nothing where nobody knows it."""
    if told.line.number:
        return ""
    second, part = divmod(told.line.time, 1)
    return f"{_time_of_day(int(second))}.{int(part * 1000):03} "


@lru_cache(maxsize=16)
def _time_of_day(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


def _name(told: Told) -> str:
    return f"{told.line.host or '?'}:{told.line.rank}" if len(told.ranks) == 1 else f"[x{len(told.ranks)}]"


def _level(told: Told) -> str:
    return "" if told.line.level in _QUIET else f"{told.line.level} "
