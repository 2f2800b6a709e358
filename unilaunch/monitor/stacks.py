"""Read the ranks' stacks from the text of faulthandler."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unilaunch.interfaces.step import Step
from unilaunch.monitor.messages import Stack

_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+ .*$", re.MULTILINE)
#: Files whose frames are omitted: unilaunch's frames are the same on all ranks.
_LAUNCHER = (
    "/unilaunch/rank/",
    "/unilaunch/agent/",
    "/unilaunch/cli.py",
    "/unilaunch/__main__.py",
    "<frozen ",
    "/runpy.py",
)
#: Files of Python, of installed packages and of unilaunch, also where it runs from its repository.
_LIBRARY = re.compile(
    r"/lib(?:64)?/python3[.\d]*/|/(?:site|dist)-packages/"
    rf"|^(?:{re.escape(str(Path(__file__).parents[2]))}/(?:(?:models|backends)/)?)?unilaunch(?:_\w+)?/"
)
_SHOWN = 4  # frames


def group(stacks: Mapping[int, Stack]) -> list[dict[str, Any]]:
    """Return groups of ranks at the same place, the larger groups first: "ranks", "where", and one whole "stack"."""
    groups: dict[str, dict[str, Any]] = {}
    for rank, stack in sorted(stacks.items()):
        where = describe(stack.text, stack.facts)
        groups.setdefault(where, {"ranks": [], "where": where, "stack": stack.text})["ranks"].append(rank)
    return sorted(groups.values(), key=lambda one: -len(one["ranks"]))


def describe(stack: str, progress: Mapping[str, Any]) -> str:
    """Return the main thread's innermost frames: "reduce (mpi.py:152) < fit (train.py:9), in batch 3 of 9".

    The program's innermost line and its outermost one follow where they are not among them: a user knows these alone.
    """
    frames = _main_thread(stack)
    places = [f"{function} ({file.rpartition('/')[2]}:{line})" for file, line, function in frames]
    own = [at for at, (file, _, _) in enumerate(frames) if file.endswith(".py") and not _LIBRARY.search(file)]
    shown = sorted({*range(len(places))[:_SHOWN], *own[:1], *own[-1:]})
    gaps = ("... < " if at - 1 not in {-1, *shown} else "" for at in shown)
    text = " < ".join(f"{gap}{places[at]}" for gap, at in zip(gaps, shown, strict=True))
    step = Step.from_facts(progress)
    doing = step.place if step else f"phase {progress.get('phase')!r}"
    where = text or stack.partition("\n")[0]
    return f"{where}, in {doing}"


def without_launcher(stack: str) -> str:
    """Return faulthandler's text without the outermost frames, if they are unilaunch's: those that run the program."""
    lines = stack.splitlines(keepends=True)
    for end in [at for at in range(len(lines), 0, -1) if _is_frame(lines[at - 1 : at]) > _is_frame(lines[at : at + 1])]:
        begin = end
        while _is_frame(lines[begin - 1 : begin]) and any(part in lines[begin - 1] for part in _LAUNCHER):
            begin -= 1
        if _is_frame(lines[begin - 1 : begin]):  # else nothing but unilaunch's frames is left
            del lines[begin:end]
    return "".join(lines)


def _is_frame(lines: Sequence[str]) -> bool:
    return bool(lines) and _FRAME.match(lines[0]) is not None


def _main_thread(stack: str) -> Sequence[tuple[str, str, str]]:
    """Return the frames (file, line, function) of the main thread, which faulthandler writes last."""
    frames = _FRAME.findall(_THREAD.split(stack)[-1])
    own = [frame for frame in frames if not any(part in frame[0] for part in _LAUNCHER)]
    return own or frames
