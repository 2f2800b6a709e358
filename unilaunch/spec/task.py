"""The task: spec, target and options, read and checked; nothing is imported or started yet.

`launch` passes the task to its ranks as JSON, which they read without pydantic: its import takes longer than a rank
takes for everything else.
"""

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from unilaunch.errors import PluginError, SpecError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.backend import Backend
from unilaunch.interfaces.model import Model
from unilaunch.json_value import JsonValue
from unilaunch.overriding import override
from unilaunch.record import Record
from unilaunch.spec.target import Target
from unilaunch.version import __version__

if TYPE_CHECKING:
    from unilaunch.spec.launch_spec import LaunchSpec
    from unilaunch.spec.run_spec import RunSpec, Spec

S = TypeVar("S", bound="RunSpec", covariant=True)  # noqa: PLC0105
#: Fields of `spec.json` beside the spec's: true if secret values of `args` are left out; and the folder in which the
#: run was started, to which its relative paths are relative.
LEFT_OUT, STARTED_IN = "secrets_left_out", "started_in"
_LARGEST = 120_000  # bytes: Linux allows 128 KiB for a variable of the environment


class Machine(Enum):
    """The machine on which a job will run: it determines what is checked on the machine that plans the job."""

    #: This machine: its files, its mpirun, its cores and its devices are checked.
    HERE = "here"
    #: Hosts of a cluster with the same files: scripts and frameworks are checked here, cores and devices are not.
    CLUSTER = "cluster"
    #: Containers: the script, the framework, Python and mpirun are in the image, and nothing is checked here.
    IMAGE = "image"


class Task(Record, Generic[S]):
    """A task that has been read and checked.

    Attributes:
        spec: The spec.
        target: The target of the run.
        model: The target, if it is a model.
        options: The model's options.
        backends: The backends, whose frameworks are not imported yet: one for a model; all installed ones for a
            program, which may use any of them.
        command: The command line of `launch`, word by word; () if the ranks were started without it.
        host: The host of `launch`, which may not see the files of other hosts; "" if the ranks were started without it.
    """

    spec: S
    target: Target
    model: Model | None
    options: "Spec | None"
    backends: tuple[Backend, ...]
    command: tuple[str, ...] = ()
    host: str = ""

    def check(self, world_size: int) -> None:
        """Raise an error if the task does not fit the number of ranks.

        Raises:
            SpecError: The model's options do not fit.
        """
        if self.model:
            self.model.check(self.options, world_size)


def encode_task(task: "Task[LaunchSpec]") -> str:
    """Return the task of every rank as text, without a program's arguments, which the command line contains.

    Raises:
        PluginError: An option of the model has a type that a rank cannot read.
        SpecError: The text is too long for a variable of the environment.
    """
    from unilaunch.spec.run_spec import RunSpec

    spec = {name: _encode(name, getattr(task.spec, name)) for name in RunSpec.model_fields if name != "args"}
    target = {"kind": task.target.kind, "name": task.target.name, "source": task.target.source}
    options = _encode("options", task.options)
    fields = {"version": __version__, "target": target, "spec": spec, "options": options, "command": list(task.command)}
    text = json.dumps(fields | {"host": task.host, "entry_points": plugins.table()})
    if len(text) > _LARGEST:
        raise SpecError(
            f"{task.target}: its source, its options and the command line are {len(text)} bytes together, and a "
            f"variable of the environment holds {_LARGEST}: keep the code in a module, and large values in a file"
        )
    return text


def decode_task(text: str, args: Sequence[str]) -> "Task[RunSpec]":
    """Return the task of this rank.

    Raises:
        SpecError: The text comes from another version of unilaunch, or the script does not exist here.
        PluginError: The model or the backend is not installed here.
    """
    fields = json.loads(text)
    if fields["version"] != __version__:
        raise SpecError(
            f"launch is unilaunch {fields['version']}, and this host has {__version__}: install the same one"
        )
    target = Target(**fields["target"])
    target.find_file()
    spec = cast("RunSpec", _decode({"spec": fields["spec"] | {"args": {"tuple": list(args)}}}))
    model = plugins.load_model(target.name) if target.kind == "model" else None
    options = _decode(fields["options"]) if model else None
    backends = (plugins.load_backend(spec.backend),) if model else plugins.backends_of_program(spec.backend)
    command = tuple(fields["command"])
    return Task(spec, target, model, cast("Spec | None", options), backends, command, fields["host"])


def _encode(name: str, value: Any) -> JsonValue:
    """Return a value as JSON, together with its type if JSON has no such type."""
    from pydantic import BaseModel

    match value:
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return {"path": str(value)}
        case tuple():
            return {"tuple": [_encode(name, one) for one in value]}
        case list():
            return [_encode(name, one) for one in value]
        case dict():
            return {"table": {str(key): _encode(name, one) for key, one in value.items()}}
        case BaseModel():
            return {"spec": {inner: _encode(inner, getattr(value, inner)) for inner in type(value).model_fields}}
    raise PluginError(
        f"{name}: an option cannot be a {type(value).__name__}: expected numbers, text, paths, and lists, tuples, "
        "tables or specs of them"
    )


def _decode(value: Any) -> Any:
    match value:
        case {"path": path}:
            return Path(path)
        case {"tuple": values}:
            return tuple(map(_decode, values))
        case {"table": table}:
            return {key: _decode(one) for key, one in table.items()}
        case {"spec": values}:
            return Values({name: _decode(one) for name, one in values.items()})
        case list():
            return list(map(_decode, value))
    return value


class Values:
    """The values of a spec, frozen and by name, on a rank that received them from `launch`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    @override
    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: a spec is frozen")

    def to_json(self) -> dict[str, JsonValue]:
        """Return the values as the spec itself writes them to JSON."""
        return cast("dict[str, JsonValue]", json.loads(json.dumps(vars(self), default=_plain)))


def _plain(value: Any) -> Any:
    return vars(value) if isinstance(value, Values) else str(value)
