"""What each rank is started as: the `unilaunch run` that does what the spec says."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from unilaunch.launch_spec import LaunchSpec
from unilaunch.spec import RunSpec, variable_of
from unilaunch.target import Target
from unilaunch.task import Task


def program_line(task: Task[LaunchSpec], python: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Give the words of a rank's command line: what the user chose, and nothing that is `run`'s own default.

    But for a default that a UNILAUNCH_ variable would change where the line is run by hand or by a job file.

    Args:
        task: What the ranks are to do.
        python: The interpreter; absolute, since on another host PATH may name another one.
        environ: The process's environment.
    """
    yield from (python, "-m", "unilaunch", "run", *_target_words(task.target))
    yield from _options(task.spec, [name for name in RunSpec.model_fields if _must_be_said(name, task.spec, environ)])
    if task.options:
        given = task.options.model_fields_set
        yield from _options(task.options, [name for name in type(task.options).model_fields if name in given])
    if task.spec.args:
        yield from ("--", *task.spec.args)


def _must_be_said(name: str, spec: RunSpec, environ: Mapping[str, str]) -> bool:
    return getattr(spec, name) != RunSpec.model_fields[name].default or variable_of(name, environ) in environ


def _target_words(target: Target) -> tuple[str, ...]:
    return ("-m", target.name) if target.kind == "module" else (target.name,)


def _options(spec: BaseModel, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(spec, name)
        if name in {"target", "args"} or value is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}"
        else:
            yield option
            yield str(value) if isinstance(value, Path | str) else f"{value}"
