"""What each rank is started as: the `unilaunch run` that does what the spec says."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from unilaunch.launch_spec import LaunchSpec
from unilaunch.spec import RunSpec
from unilaunch.target import Target
from unilaunch.task import Task


def program_line(task: Task[LaunchSpec], python: str) -> Iterator[str]:
    """Give the words of a rank's command line: what the user chose, and nothing that is `run`'s own default.

    Args:
        task: What the ranks are to do.
        python: The interpreter; absolute, since on another host PATH may name another one.
    """
    yield from (python, "-m", "unilaunch", "run", *_target_words(task.target))
    yield from _options(task.spec, {name: RunSpec.model_fields[name].default for name in RunSpec.model_fields})
    if task.options:
        yield from _options(task.options, {})
    if task.spec.args:
        yield from ("--", *task.spec.args)


def _target_words(target: Target) -> tuple[str, ...]:
    return ("-m", target.name) if target.kind == "module" else (target.name,)


def _options(spec: BaseModel, defaults: dict[str, object]) -> Iterator[str]:
    """Give the options that were set, and those whose default is not `run`'s."""
    names = list(defaults) or [name for name in type(spec).model_fields if name in spec.model_fields_set]
    for name in names:
        value = getattr(spec, name)
        if name in {"target", "args"} or value is None or (name in defaults and value == defaults[name]):
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}"
        else:
            yield option
            yield str(value) if isinstance(value, Path | str) else f"{value}"
