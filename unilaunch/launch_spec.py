"""What the user wants of a whole job; a module of its own, since a rank never needs it."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, JsonValue

from unilaunch.exports import secrets, without_secrets
from unilaunch.spec import RunSpec, Spec, read_file, validate


class MpiSpec(Spec):
    """What mpirun is told, under the names that Open MPI's users know."""

    mpirun: Path | None = Field(default=None, description="the mpirun or mpiexec; default: PATH's, or the wheel's")
    prefix: Path | None = Field(default=None, description="where Open MPI is installed on the other hosts")
    allow_run_as_root: bool = Field(default=False, description="let root start the job")
    oversubscribe: bool = Field(default=False, description="more ranks than slots, dealt out over the hosts")
    bind_to: str | None = Field(default=None, description="what ranks are bound to: none, core, socket, ...")
    map_by: str | None = Field(default=None, description="how ranks are dealt out: slot, node, ppr:N:node, ...")
    rank_by: str | None = Field(default=None, description="how ranks are numbered")
    mca: tuple[tuple[str, str], ...] = Field(default=(), description="an MCA parameter of Open MPI")
    x: tuple[str, ...] = Field(default=(), description="a variable that all ranks get")
    output_filename: str | None = Field(default=None, description="mpirun's own files of the ranks' output")
    merge_stderr_to_stdout: bool = Field(default=False, description="one stream for both in mpirun's output")
    tag_output: bool = Field(default=False, description="mpirun writes [job,rank] at the start of each line")
    args: tuple[str, ...] = Field(default=(), description="further words for mpirun, as they are")


class LaunchSpec(RunSpec):
    """A whole job: what its ranks are to do, how many they are and where."""

    console: Literal["all", "rank0"] = Field(
        default="rank0", description="whose output is shown as well as kept: every rank's, or rank 0's"
    )
    nprocs: int | None = Field(default=None, ge=1, description="number of ranks; default: all slots of the hosts")
    hostfile: Path | None = Field(default=None, description="hosts and their slots, in a file")
    hosts: str | None = Field(default=None, description="hosts and their slots: a:4,b:4")
    grace: float = Field(
        default=30.0, ge=0, description="seconds that the ranks have to end after SIGTERM, SIGINT or SIGHUP to launch"
    )
    max_restarts: int = Field(
        default=0,
        ge=0,
        description="how often the job is started again, from its newest checkpoint if it keeps any, when it fails",
    )
    elastic: bool = Field(default=False, description="start it again without the hosts that are lost")
    options: dict[str, JsonValue] = Field(default={}, description="the model's options, or a function's arguments")
    mpi: MpiSpec = Field(default=MpiSpec(), description="what mpirun is told")

    def shown(self) -> Self:
        """Return the same without the values of secrets, to be shown or kept."""
        mpi = self.mpi.model_copy(update={"x": without_secrets(self.mpi.x)})
        return self.model_copy(update={"mpi": mpi} if secrets(self.mpi.x) else {})

    @classmethod
    def from_file(cls, path: str | Path) -> "LaunchSpec":
        """Return the spec that a TOML, YAML or JSON file describes.

        Raises:
            SpecError: It cannot be read, or says something that is not allowed.
        """
        fields = read_file(Path(path))
        return validate(cls, fields, {field: f"{path}: {field}" for field in fields})
