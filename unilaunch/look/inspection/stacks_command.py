"""`unilaunch stacks`."""

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from unilaunch.errors import InputError, one_line
from unilaunch.interfaces.command import Command
from unilaunch.look.inspection.asking import ask, not_running
from unilaunch.look.logs.ending import have_ended
from unilaunch.monitor.messages import Stack
from unilaunch.monitor.stacks import group
from unilaunch.monitor.verdict import ranks
from unilaunch.overriding import override
from unilaunch.spec.run_spec import Spec


class StacksSpec(Spec):
    """Which job to inspect, and how to show its stacks."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder of a running job")
    native: bool = Field(default=False, description="also the frames of C and C++, by py-spy on each host")
    full: bool = Field(default=False, description="the whole stacks of all threads, not only the place of the main one")
    as_json: bool = Field(default=False, description="every rank's text as JSON")


class StacksCommand(Command):
    """Show where each rank of a running job stands, without stopping it."""

    help = "show where each rank of a running job stands, equal ones together"
    examples = ("unilaunch stacks", "unilaunch stacks log_output --full", "unilaunch stacks --native")
    spec = StacksSpec

    @override
    def run(self, options: StacksSpec) -> int:
        told = ask(options.folder, "/stacks/native" if options.native else "/stacks")
        if told is None and have_ended(options.folder):
            raise InputError(f"{options.folder}: the job there has ended: `unilaunch status {options.folder}` says how")
        if told is None:
            raise not_running(options.folder)
        sys.stdout.write(json.dumps(told, indent=1) + "\n" if options.as_json else _text(told, full=options.full))
        return 0


def _text(told: dict[str, Any], *, full: bool) -> str:
    stacks = {int(rank): Stack(str(one["text"]), dict(one["facts"])) for rank, one in told["stacks"].items()}
    lines = []
    for one in group(stacks):
        lines.append(f"{ranks(one['ranks'])}: {one['where']}")
        lines += [f"    {line}" for line in one["stack"].splitlines()] if full else []
    if told["silent"]:
        lines.append(f"{ranks(told['silent'])}: no answer")
    return "".join(f"{one_line(line)}\n" for line in lines or ["no rank is running"])
