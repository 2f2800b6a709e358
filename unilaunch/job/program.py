"""The command line of each rank: `unilaunch run` with the finished spec."""

import json
from typing import Any

from unilaunch.launch_spec import LaunchSpec
from unilaunch.spec import RunSpec
from unilaunch.task import Task


def program_line(task: Task[LaunchSpec], python: str) -> tuple[str, ...]:
    """Return the words of a rank's command line: they contain the whole spec, and so work in any environment.

    A program's arguments follow `--` unchanged: one word holds at most 128 KiB.

    Args:
        task: The task of the ranks.
        python: The interpreter's absolute path, since PATH may contain another interpreter on another host.
    """
    spec = {
        name: value
        for name, value in task.spec.model_dump(mode="json", include=set(RunSpec.model_fields)).items()
        if name not in {"target", "args"} and getattr(task.spec, name) != RunSpec.model_fields[name].default
    }
    options = task.options.model_dump(mode="json", exclude_defaults=True) if task.options else {}
    whole: dict[str, Any] = {"target": str(task.target), **spec, **({"options": options} if options else {})}
    args = ("--", *task.spec.args) if task.spec.args else ()
    return (python, "-m", "unilaunch", "run", "--spec", json.dumps(whole), *args)
