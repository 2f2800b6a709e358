"""What each rank is started as: `unilaunch run` with the finished spec."""

import json
from typing import Any

from unilaunch.launch_spec import LaunchSpec
from unilaunch.spec import RunSpec
from unilaunch.task import Task


def program_line(task: Task[LaunchSpec], python: str) -> tuple[str, ...]:
    """Return the words of a rank's command line: they say the whole spec, wherever they are typed.

    A program's arguments stand behind `--`, as they are: one word holds at most 128 KiB.

    Args:
        task: What the ranks are to do.
        python: The interpreter; absolute, since on another host PATH may name another one.
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
