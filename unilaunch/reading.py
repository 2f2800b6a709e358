"""Read options, environment and file into a checked task."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from unilaunch import plugins
from unilaunch.errors import SpecError
from unilaunch.launchers import set_by_launchers
from unilaunch.model import Model
from unilaunch.spec import RunSpec, Spec, read_variables, validate, variable_of
from unilaunch.spec_file import read_file
from unilaunch.target import Target, read_target
from unilaunch.task import Machine, Task

S = TypeVar("S", bound=RunSpec)
_HOSTS = {"hosts", "hostfile"}


def read_task(
    kind: type[S], given: Mapping[str, Any], environ: Mapping[str, str], machine: Machine = Machine.HERE
) -> Task[S]:
    """Return the user's task. Options override the environment, and the environment overrides the file.

    Args:
        kind: The spec's type.
        given: The options of the command line as text, by field; "config" names a file.
        environ: The process's environment.
        machine: Where the job will run.

    Raises:
        SpecError: Something is not allowed.
        PluginError: The model or the backend is not installed.
    """
    if "spec" in given:
        return _read_whole(kind, given, machine)
    options = {field: value for field, value in given.items() if field != "config"}
    variables = read_variables(environ, kind.model_fields, known_fields)
    file = read_file(Path(given["config"]), given) if "config" in given else {}
    if not ({"target"} & {*file, *variables, *options}):
        _refuse_script_as_value(options)
    target = _choose({**file, **variables, **options}, machine)
    file = _unfold(file, target, str(given.get("config")))
    if file:
        _refuse_options_of_launch(kind, file, str(given.get("config")))
    # The environment may set options of another model or command; on the command line and in a file that is an error.
    mine = {*kind.model_fields, *(plugins.models()[target.name].spec.model_fields if target.kind == "model" else ())}
    variables = {field: value for field, value in variables.items() if field in mine}
    if target.kind == "model":
        others = plugins.models()[target.name].spec.other_variables
        variables = {others[name]: environ[name] for name in others if environ.get(name)} | variables
    file = without_hosts(file, variables, options)
    variables = without_hosts(variables, options)
    meeting = {} if machine is Machine.IMAGE else _meeting(environ)  # of this shell, and not of a pod
    values = {**meeting, **file, **variables, **options}
    sources = {
        **{field: field.upper() for field in meeting},
        **{field: f"{given.get('config')}: {field}" for field in file},
        **{field: variable_of(field, environ) for field in variables},
        **{field: _option(field) for field in options},
    }
    return make_task(kind, target, values, sources, machine)


def _option(field: str) -> str:
    return "-x" if field == "export" else f"--{field.replace('_', '-')}"


def _refuse_script_as_value(options: Mapping[str, Any]) -> None:
    """Raise an error if an option took a script as its value: without a target the default one would run."""
    for field, value in options.items():
        last = value[-1] if isinstance(value, list) and value else value
        last = last[-1] if isinstance(last, list) and last else last  # of --mca NAME VALUE
        if str(last).endswith(".py") and os.path.isfile(str(last)):  # noqa: PTH113  (raises nothing)
            raise SpecError(f"{_option(field)} {last}: no TARGET is given: does this option lack its value?")


def _refuse_options_of_launch(kind: type[RunSpec], file: Mapping[str, Any], path: str) -> None:
    from unilaunch.launch_spec import LaunchSpec

    if others := [field for field in file if field in LaunchSpec.model_fields and field not in kind.model_fields]:
        raise SpecError(f"{path}: {', '.join(others)}: only launch can do that: type unilaunch launch --config {path}")


def _read_whole(kind: type[S], given: Mapping[str, Any], machine: Machine) -> Task[S]:
    """Return the task from the JSON of `--spec` and the program's arguments; no other source is read."""
    if others := set(given) - {"spec", "args"}:
        named = ", ".join(f"--{field.replace('_', '-')}" for field in sorted(others))
        raise SpecError(f"--spec: it says everything; leave out {named}")
    try:
        values = json.loads(given["spec"])
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--spec: {error}: expected a spec as JSON") from None
    if not isinstance(values, dict):
        raise SpecError(f"--spec: expected fields (name and value), found {type(values).__name__}")
    values |= {"args": given["args"]} if "args" in given else {}
    target = _choose(values, machine)
    values = _unfold(values, target, "--spec")
    return make_task(kind, target, values, {field: f"--spec: {field}" for field in values}, machine)


def make_task(
    kind: type[S],
    target: Target,
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    machine: Machine = Machine.HERE,
) -> Task[S]:
    """Return the task that *values* describe: the fields of the spec and of the model.

    Raises:
        SpecError: Something is not allowed.
        PluginError: The backend is not installed.
    """
    here = machine is not Machine.IMAGE
    if target.kind != "model":
        spec = validate(kind, values, sources)
        return Task(spec, target, None, None, plugins.backends_of_program(spec.backend, here=here))
    model = plugins.models()[target.name]
    spec, options = _validate_both(kind, model, values, sources)
    if not here:
        return Task(spec, target, model, options, plugins.backends_of_program(spec.backend, here=False))
    backend = plugins.load_backend(spec.backend)
    return Task(spec.model_copy(update={"backend": backend.name}), target, model, options, (backend,))


def known_fields() -> Iterator[Collection[str]]:
    """Yield the names of the options of `launch`, of each model and of each command, which are imported one by one."""
    from unilaunch.launch_spec import DoctorSpec  # a rank needs this only for a UNILAUNCH_ variable

    yield DoctorSpec.model_fields  # those of `launch` too
    yield from (model.spec.model_fields for model in plugins.models().values())
    yield from (command.spec.model_fields for command in plugins.commands().values())


def _choose(values: Mapping[str, Any], machine: Machine) -> Target:
    text = str(values.get("target", RunSpec.model_fields["target"].default))
    return read_target(text, plugins.named_models(text), here=machine is not Machine.IMAGE)


def without_hosts(weaker: Mapping[str, Any], *stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source without its hosts, if a stronger one names hosts: in a list or a file, that is one option."""
    named = any(_HOSTS & set(one) for one in stronger)
    return {field: value for field, value in weaker.items() if not (named and field in _HOSTS)}


def _meeting(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables for rank 0's address; if a launcher has set them, they are not the user's."""
    others = set_by_launchers(environ)
    return {
        name.lower(): environ[name]
        for name in ("MASTER_ADDR", "MASTER_PORT")
        if environ.get(name) and name not in others
    }


def _unfold(file: Mapping[str, Any], target: Target, path: str) -> dict[str, Any]:
    """Return a file's fields, with those under `options` (the target's options in `spec.json`) at the top level."""
    options = file.get("options", {})
    if not isinstance(options, Mapping):
        raise SpecError(f"{path}: options: expected the target's options by name, found {options!r}")
    own = {field: value for field, value in file.items() if field != "options"}
    return own | unfold_options(options, target, own.get("args", ()))


def unfold_options(options: Mapping[str, Any], target: Target, args: object = ()) -> dict[str, Any]:
    """Return a spec's `options` as fields: a model's options by name, a function's as words NAME=JSON after *args*.

    Raises:
        SpecError: The target is a script or a module, which has arguments but no options; or a function cannot get
            these arguments.
    """
    if not options:
        return {}
    if target.kind == "model":
        return {str(field).replace("-", "_"): value for field, value in options.items() if value is not None}
    if target.kind == "function":
        if not isinstance(args, list | tuple):
            raise SpecError(f"args: must be a list of text, not {args!r}")
        return {"args": (*args, *(_argument(name, value) for name, value in options.items()))}
    named = ", ".join(map(str, options))
    raise SpecError(f"{named}: a {target.kind} has no options; what it is to find in sys.argv goes into args")


def _argument(name: str, value: object) -> str:
    try:
        return named_word(name, json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:  # TOML and YAML have dates
        raise SpecError(f"options: {name}: cannot be sent to the ranks ({error}): write it as text") from None


def named_word(name: str, text: str) -> str:
    """Return a function's argument NAME=JSON.

    Raises:
        SpecError: The rank would take the word for an argument by position.
    """
    if not str(name).isidentifier():
        raise SpecError(f"{name!r}: cannot be the name of an argument: expected letters, digits and _")
    return f"{name}={text}"


def _validate_both(
    kind: type[S], model: Model, values: Mapping[str, Any], sources: Mapping[str, str]
) -> tuple[S, Spec]:
    """Return the spec and the model's options; the faults of both are reported in one error."""
    core = {field: value for field, value in values.items() if field in kind.model_fields}
    rest = {field: value for field, value in values.items() if field not in core}
    try:
        spec = validate(kind, core, sources)
    except SpecError as fault:
        try:
            validate(model.spec, rest, sources, kind.model_fields)
        except SpecError as other:
            raise SpecError(f"{fault}; {other}") from None
        raise
    if spec.args:
        raise SpecError(f"args: {model.name} is a model and has options, no arguments: {' '.join(spec.args)}")
    return spec, validate(model.spec, rest, sources, kind.model_fields)
