"""What a rank is to do: options, environment and file, read into a checked spec. Nothing is imported or done yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilaunch import plugins
from unilaunch.backend import Backend
from unilaunch.errors import SpecError
from unilaunch.model import Model
from unilaunch.spec import RunSpec, Spec, read_file, read_variables, validate, variable_of


@dataclass(frozen=True, slots=True)
class Task:
    """What this rank is to do, read and checked.

    Attributes:
        spec: The spec.
        model: Its target.
        options: The model's options.
        backend: The framework, not yet imported.
    """

    spec: RunSpec
    model: Model
    options: Spec
    backend: Backend


def read_task(given: Mapping[str, Any], environ: Mapping[str, str], world_size: int) -> Task:
    """Return what `run` was told: options win over the environment, and the environment over the file.

    Args:
        given: The options of the command line as text, by field; "config" names a file.
        environ: The process's environment.
        world_size: Number of ranks.

    Raises:
        SpecError: Something is not allowed.
        PluginError: The model or the backend is not installed.
    """
    models = plugins.models()
    options = {field: value for field, value in given.items() if field != "config"}
    known = {*RunSpec.model_fields, *(field for model in models.values() for field in model.spec.model_fields)}
    variables = read_variables(environ, known)
    file = _read_config(Path(given["config"])) if "config" in given else {}
    model = _choose({**file, **variables, **options}, models)
    # The environment may hold what another model reads; on the command line and in the file that is a slip.
    mine = {*RunSpec.model_fields, *model.spec.model_fields}
    variables = {field: value for field, value in variables.items() if field in mine}
    values = {**file, **variables, **options}
    sources = {
        **{field: f"{given.get('config')}: {field}" for field in file},
        **{field: variable_of(field, environ) for field in variables},
        **{field: f"--{field.replace('_', '-')}" for field in options},
    }
    spec, checked = _validate_both(model, values, sources)
    model.check(checked, world_size)
    backend = plugins.load_backend(spec.backend)
    return Task(spec.model_copy(update={"backend": backend.name}), model, checked, backend)


def _choose(values: Mapping[str, Any], models: Mapping[str, Model]) -> Model:
    name = str(values.get("target", RunSpec.model_fields["target"].default))
    if name not in models:
        raise SpecError(f"no model {name!r}; installed: {', '.join(models) or 'none'}")
    return models[name]


def _validate_both(model: Model, values: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[RunSpec, Spec]:
    """Return the spec and the model's options; the faults of both are one error."""
    core = {field: value for field, value in values.items() if field in RunSpec.model_fields}
    rest = {field: value for field, value in values.items() if field not in core}
    try:
        spec = validate(RunSpec, core, sources)
    except SpecError as fault:
        try:
            validate(model.spec, rest, sources)
        except SpecError as other:
            raise SpecError(f"{fault}; {other}") from None
        raise
    return spec, validate(model.spec, rest, sources)


def _read_config(path: Path) -> dict[str, Any]:
    """Return a file's fields with those under `options`, where `spec.json` has the model's, beside the others."""
    file = read_file(path)
    options = file.get("options", {})
    if not isinstance(options, Mapping):
        raise SpecError(f"{path}: options: expected the model's options by name, found {options!r}")
    own = {field: value for field, value in file.items() if field != "options"}
    return own | {str(field).replace("-", "_"): value for field, value in options.items() if value is not None}
