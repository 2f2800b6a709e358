"""The spec of a whole job. It is a separate module, so that a rank does not import it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from unilaunch.spec.redaction import redact_fields, without_secret_values
from unilaunch.spec.run_spec import RunSpec, Spec, option_of, validate
from unilaunch.spec.task import LEFT_OUT


def written_as(pattern: str, what: str) -> AfterValidator:
    """Return a check that the whole text matches a regular expression; *what* says in words which text does."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(what)
        return text

    return AfterValidator(check)


def _pairs(parameters: object) -> object:
    """Return a table of parameters as pairs; a number in it, as in TOML, is text for mpirun."""
    if not isinstance(parameters, Mapping):
        return parameters
    return [(name, str(value) if type(value) in {int, float} else value) for name, value in parameters.items()]


def _one_number(nodes: object) -> object:
    """Return torchrun's N:N as N; a range is refused."""
    least, colon, most = str(nodes).partition(":")
    if colon and least != most:
        raise ValueError("one number (a job that may lose hosts: --hostfile FILE --max-restarts 3 --elastic)")
    return least if colon else nodes


_Parameter = tuple[
    Annotated[str, written_as(r"[^= ]+", "the parameter's name and its value, as two words: --mca btl self")], str
]
Parameters = Annotated[
    tuple[_Parameter, ...],
    BeforeValidator(_pairs, json_schema_input_type=tuple[_Parameter, ...] | dict[str, str | int | float]),
]
Observe = Annotated[str, written_as(r"[\w-]+=.+", "an observer's name, and where: tensorboard=FOLDER, mlflow=URL")]
Variable = Annotated[str, written_as(r"(?a)[A-Za-z_]\w*", "a variable's name: letters, digits and _")]
#: Open MPI 5 takes the names that begin with NAME for NAME*.
Export = Annotated[str, written_as(r"(?as)[A-Za-z_][\w.]*(\*|=.*)?", "a variable, NAME or NAME=VALUE")]


#: The fields that only mpirun applies.
OF_MPIRUN = ("mpirun", "prefix", "map_by", "mca", "mpi_args")


class MpiSpec(Spec):
    """mpirun's options, with the names that Open MPI uses."""

    mpirun: Path | None = Field(default=None, description="the mpirun or mpiexec; default: PATH's, or the wheel's")
    prefix: Path | None = Field(default=None, description="where Open MPI is installed on the other hosts")
    allow_run_as_root: bool = Field(default=False, description="let root start the job")
    oversubscribe: bool = Field(default=False, description="more ranks than slots, spread over the hosts")
    bind_to: str | None = Field(
        default=None,
        min_length=1,
        description="what ranks are bound to: none, core, socket, ...; a direct start: a share of the cores",
    )
    map_by: str | None = Field(
        default=None, min_length=1, description="in which order ranks are placed: slot, node, ppr:N:node, ..."
    )
    mca: Parameters = Field(default=(), description="an MCA parameter of Open MPI")
    export: tuple[Export, ...] = Field(default=(), description="a variable that all ranks get")
    cwd: Path | None = Field(default=None, description="the folder in which the ranks start; default: this one")
    mpi_args: tuple[str, ...] = Field(default=(), description="further words for mpirun, as they are")


class LaunchSpec(RunSpec, MpiSpec):
    """A whole job: the task of its ranks, their number and their hosts."""

    console: Literal["all", "labelled", "rank0"] = Field(
        default="rank0",
        description="whose output is shown",
    )
    launcher: Literal["auto", "direct", "mpirun"] = Field(
        default="auto",
        description="what starts the ranks: launch itself, an mpirun, or auto: mpirun where it is needed",
    )
    nprocs: int | None = Field(
        default=None,
        ge=1,
        description="ranks; gpu or cpu: one for each; default: all slots",
    )
    nproc_per_node: int | None = Field(
        default=None, ge=1, description="number of ranks of each node, or gpu, cpu, auto, if the line is typed on each"
    )
    nnodes: Annotated[int, BeforeValidator(_one_number)] = Field(
        default=1, ge=1, description="nodes; this line is typed on each"
    )
    node_rank: int | None = Field(
        default=None,
        ge=0,
        description="number of this node, from 0; default: in order of arrival",
    )
    rdzv_endpoint: str | None = Field(
        default=None, min_length=1, description="ADDRESS:PORT, for --master-addr and --master-port of several nodes"
    )
    hostfile: Path | None = Field(default=None, description="hosts and their slots, in a file")
    hosts: str | None = Field(default=None, min_length=1, description="hosts and their slots: a:4,b:4")
    grace: float = Field(
        default=30.0,
        ge=0,
        description="seconds that ranks have to end after SIGTERM, SIGINT or SIGHUP to launch, or after a failure",
    )
    max_restarts: int = Field(
        default=0,
        ge=0,
        description="how often a failed job starts again",
    )
    observe: tuple[Observe, ...] = Field(
        default=(),
        description="who is told the numbers of the job while it runs: tensorboard=FOLDER and mlflow=URL those of a "
        "model's steps, otlp=URL (an OpenTelemetry collector) the live metrics",
    )
    elastic: bool = Field(default=False, description="start it again without the hosts that are lost")
    env: dict[Variable, str] = Field(default={}, description="variables that all ranks get, by name")
    options: dict[str, JsonValue] = Field(default={}, description="the model's options, or a function's arguments")

    @property
    def options_of_mpirun(self) -> list[str]:
        """The options that were given and that only mpirun applies, as they are typed."""
        return [option_of(field) for field in OF_MPIRUN if getattr(self, field)]

    def resolved(self) -> Self:
        """Return the spec with `env` as words of `-x`, and with an output folder that does not depend on `cwd`."""
        export = (*self.export, *(f"{name}={value}" for name, value in self.env.items()))
        root = Path.cwd() / self.output_dir if self.cwd else self.output_dir
        return self.model_copy(update={"export": export, "env": {}, "output_dir": root})

    def shown(self, options: Spec | None, *, whole: bool) -> dict[str, Any]:
        """Return the fields as JSON values, without secret ones, to be shown or written to files.

        Args:
            options: The options of the model, if the target is one.
            whole: Whether fields are there that have their default.
        """
        fields = self.model_dump(mode="json", exclude_defaults=not whole)
        if options or whole:
            fields["options"] = options.model_dump(mode="json", exclude_defaults=not whole) if options else {}
        shown = redact_fields(fields)
        if "export" in fields:
            shown["export"] = list(without_secret_values(self.export))
        return shown | ({LEFT_OUT: True} if shown.get("args") != fields.get("args") else {})

    @classmethod
    def from_file(cls, path: str | Path) -> "LaunchSpec":
        """Return the spec that a TOML, YAML or JSON file describes; names of no field are options of the model.

        Raises:
            SpecError: The file cannot be read, or has a value that is not allowed.
        """
        from unilaunch.spec.reading import read_file

        fields = read_file(Path(path))
        sources = {field: f"{path}: {field}" for field in fields}
        target = str(fields.get("target", cls.model_fields["target"].default))
        names_a_model = re.fullmatch(r"[\w-]+", target)  # no script, module or function
        others = [field for field in sources if field not in cls.model_fields] if names_a_model else []
        if of_model := {field: fields.pop(field) for field in others}:
            options = fields.get("options", {})
            fields["options"] = {**of_model, **options} if isinstance(options, dict) else options
        return validate(cls, fields, sources)


class DoctorSpec(LaunchSpec):
    """The options of `unilaunch doctor`: the hosts, mpirun, and what to do beside the check."""

    measure: bool = Field(
        default=False, description="measure the speed of each host and of the network between them, and name slow ones"
    )
    healthy: Path | None = Field(
        default=None, description="write a hostfile of the hosts with which nothing is wrong; implies --measure"
    )
