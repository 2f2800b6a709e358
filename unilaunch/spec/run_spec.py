"""The spec of a run, and the check of values that options, the environment or a file give."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import cleandoc
from itertools import chain
from pathlib import Path
from threading import Lock
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from unilaunch.errors import SpecError, nearest
from unilaunch.overriding import override
from unilaunch.spec.placeholders import has_known_placeholders
from unilaunch.spec.redaction import redact_fields

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_ONE_AT_A_TIME = Lock()  # several jobs may be started from several threads

#: What pydantic calls a parsing error, in the user's words.
_KINDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    "string_too_short": "a name or an address",
}

#: Options that are not named as their field, but as mpirun has them.
_OPTIONS = {"export": "-x", "mpi_args": "--mpi-arg"}

S = TypeVar("S", bound="Spec")
Port = Annotated[int, Field(ge=1, le=65535)]


def _known_placeholders(folder: Path) -> Path:
    if not has_known_placeholders(folder):
        raise ValueError("a folder whose placeholders are {job}, {array} or {date}")
    return folder


OutputDir = Annotated[Path, AfterValidator(_known_placeholders)]


class Spec(BaseModel):
    """A frozen set of fields; an unknown field is an error. Every field's description is its `--help`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    #: Variables of other programs that set a field if no UNILAUNCH_ variable does; the field by the variable's name.
    other_variables: ClassVar[Mapping[str, str]] = {}
    #: Names of a field in other programs; the field by the other name.
    other_names: ClassVar[Mapping[str, str]] = {}
    #: Fields that are given by position, without an option's name.
    positional: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __init__(self, **fields: Any) -> None:
            """Check the fields; raise a SpecError of one line if they are not valid."""
            _refuse_nul(fields, {name: name for name in fields})
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise SpecError(_faults(error, type(self), {name: name for name in fields})) from None

        __init__.__pydantic_base_init__ = True  # `validate` names the sources of values, and does not come here

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let `help()` show the description of each field."""
        fields = [
            f"    {name}: {field.description}" + (f" (default: {field.default})" if field.default else "")
            for name, field in cls.model_fields.items()
        ]
        cls.__doc__ = "\n".join([cleandoc(cls.__dict__.get("__doc__") or ""), "", "Fields:", *fields])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return self.model_dump(mode="json")


def _no_function(target: object) -> object:
    if callable(target):
        raise ValueError("text; a function goes to launch itself: unilaunch.launch(train, nprocs=2)")  # noqa: TRY004
    return target


class RunSpec(Spec):
    """The task of one rank: the target, and the options for every target."""

    target: Annotated[str, BeforeValidator(_no_function)] = Field(
        default="gcn", description="a model's name, a script FILE.py, -m MODULE, or package.module:function"
    )
    args: tuple[str, ...] = Field(
        default=(), description="what a script finds in sys.argv[1:]; of a function NAME=JSON, or JSON by position"
    )
    backend: str = Field(default="auto", description="torch, mindspore; auto: the first that is installed")
    device: Literal["auto", "cpu", "cuda", "npu"] = Field(
        default="auto", description="kind of device; auto: the best seen"
    )
    output_dir: OutputDir = Field(default=Path("log_output"), description="folder of logs and result")
    threads: int | None = Field(
        default=None, ge=1, le=10_000, description="threads per rank; default: this rank's share of its cores"
    )
    # With min_length an option whose value comes from a variable that is not set (-H "$HOSTS") is refused.
    interface: str | None = Field(
        default=None, min_length=1, description="network interface between hosts; default: found by trying"
    )
    master_addr: str | None = Field(
        default=None, min_length=1, description="rank 0's address; default: agreed on by the ranks"
    )
    master_port: Port | None = Field(
        default=None, description="rank 0's port; default: a free one that rank 0 keeps, or 29500 with --nnodes"
    )
    insecure_rendezvous: bool = Field(
        default=False, description="under launchers that give ranks no secret to share, meet without one"
    )
    stall_timeout: float | None = Field(default=None, gt=0, description="seconds without progress that end the job")
    host_timeout: float = Field(
        default=15.0, ge=3, le=86400, description="seconds for which a host may not answer before it counts as lost"
    )
    metrics_port: Port | None = Field(
        default=None, description="serve live metrics at this port, as text that Prometheus reads: GET /metrics"
    )
    metrics_address: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address at which the metrics are served; anybody who reaches it can read them",
    )
    abort: bool = Field(default=True, description="end all ranks when one has failed")
    timeout: float = Field(
        default=300.0, gt=0, description="seconds for the first rank to begin, and for a rank to find the others"
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of everything that is drawn")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="least level that is logged"
    )
    console: Literal["all", "labelled", "rank0"] = Field(
        default="all",
        description="whose output is shown",
    )
    local_rank_argument: bool = Field(
        default=False, description="append --local-rank=N to a script's arguments, as torch.distributed.launch did"
    )


def validate(kind: type[S], fields: Mapping[str, Any], sources: Mapping[str, str], others: Iterable[str] = ()) -> S:
    """Return the spec with these *fields*.

    Args:
        kind: The spec's type.
        fields: Values by field name, as text or as a file gave them.
        sources: Where each field's value came from, by field name: "--seed", "run.toml: seed".
        others: Names of other fields that the user may have meant.

    Raises:
        SpecError: One line that names every field that is not valid, its value and what is allowed.
    """
    _refuse_nul(fields, sources)
    try:
        with _without_plugins():
            return kind.model_validate({name: _read_text(kind, name, value) for name, value in fields.items()})
    except _EmptyPathError as error:
        raise SpecError(f"{_where(str(error), sources)}: must be a path, not ''") from None
    except ValidationError as error:
        raise SpecError(_faults(error, kind, sources, others)) from None


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep pydantic from searching every distribution for its plug-ins when it builds a schema; that takes 11 ms."""
    with _ONE_AT_A_TIME:
        chosen = os.environ.get(_PLUGINS)  # noqa: TID251  (pydantic reads it only there)
        os.environ[_PLUGINS] = "__all__"  # noqa: TID251
        try:
            yield
        finally:
            del os.environ[_PLUGINS]  # noqa: TID251
            os.environ.update({_PLUGINS: chosen} if chosen is not None else {})  # noqa: TID251


def _refuse_nul(fields: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Refuse the letter NUL, which the system takes in no path, no variable and no argument."""
    for name, value in fields.items():
        if _has_nul(value):
            raise SpecError(f"{_where(name, sources)}: must be text without the letter NUL, not {value!r}")


def _has_nul(value: object) -> bool:
    parts = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
    if isinstance(parts, str | Path):
        return "\0" in str(parts)
    return isinstance(parts, list | tuple | chain) and any(map(_has_nul, parts))


def option_of(field: str) -> str:
    """Return the option that sets a field of the core, with its dashes."""
    return _OPTIONS.get(field) or plain_option_of(field)


def plain_option_of(field: str) -> str:
    """Return the option named as its field: --json for as_json, since pydantic has a method named json."""
    return f"--{field.removeprefix('as_').replace('_', '-')}"


def holds_several(annotation: Any) -> bool:
    """Return whether a field holds several values: a list, a tuple or a table."""
    kinds = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    return any((get_origin(kind) or kind) in {list, tuple, dict} for kind in kinds)


def read_several(text: str) -> Any:
    """Return the values in *text*: a list or a table as JSON; other text is a list with this one element."""
    import json

    with suppress(ValueError, RecursionError):
        if isinstance(values := json.loads(text), list | dict):
            return values
    return [text]


class _EmptyPathError(Exception):
    """A path of no letters, as from a variable that is not set: it would be the current folder."""


def _read_text(kind: type[Spec], name: str, value: Any) -> Any:
    """Return a value in the form that the field reads.

    The text of an option may contain several values, "none", or a path that begins with ~, which no shell replaces in
    --output-dir=~/runs and in a file.
    """
    field = kind.model_fields.get(name)
    if field is None or not isinstance(value, str | bool):
        return value
    kinds = {field.annotation, *get_args(field.annotation)}
    if isinstance(value, bool):  # pydantic takes a file's `nprocs: yes` for 1
        return str(value).lower() if {int, float} & kinds else value
    if holds_several(field.annotation):
        return read_several(value)
    if Path in kinds:
        if not value:
            raise _EmptyPathError(name)
        return os.path.expanduser(value)  # noqa: PTH111  (raises nothing where there is no home)
    return None if value == "none" and type(None) in kinds and str not in kinds else value


def _faults(
    error: ValidationError, kind: type[Spec], sources: Mapping[str, str], others: Iterable[str] = ()
) -> str:  # fmt: skip
    return "; ".join(_fault(fault, kind, sources, others) for fault in error.errors(include_url=False))


def _where(field: str, sources: Mapping[str, str]) -> str:
    return sources.get(field, option_of(field))


def _fault(fault: Any, kind: type[Spec], sources: Mapping[str, str], others: Iterable[str]) -> str:
    field, *inside = map(str, fault["loc"]) if fault["loc"] else ("spec",)
    where = _where(field, sources)
    where = ".".join([where, *(name for name in inside if not (where.startswith("-") and name.isdecimal()))])
    if fault["type"] == "extra_forbidden":
        inner = kind.model_fields[field].annotation if inside else kind
        known = inner.model_fields if isinstance(inner, type) and issubclass(inner, Spec) else ()
        if field == "mpi":
            return f"{where}: no such option: mpirun's options stand beside the others, as oversubscribe = true"
        return f"{where}: no such option{nearest((inside or [field])[-1], [*known, *(() if inside else others)])}"
    message = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    wanted = _KINDS.get(fault["type"], message)
    value = redact_fields({field: fault["input"]})[field]
    return f"{where}: must be {wanted}, not {value!r}" if fault["loc"] else wanted
