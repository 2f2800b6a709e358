"""The options that `--emit sbatch` takes: what sbatch asks Slurm for, under sbatch's own names."""

from typing import Annotated

from pydantic import Field

from unilaunch.spec import Spec
from unilaunch.written_as import written_as

Time = Annotated[str, written_as(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", "written as MINUTES, HH:MM:SS or DAYS-HH:MM:SS")]
Memory = Annotated[str, written_as(r"\d+[KMGT]?", "written as 16G")]
Gpus = Annotated[str, written_as(r"([A-Za-z][\w.-]*:)?[1-9]\d*", "written as 4 or TYPE:4, such as a100:4")]
Name = Annotated[str, written_as(r"[^\s#]+", "a name without spaces")]
Indices = Annotated[str, written_as(r"\d+([-,:]\d+)*(%\d+)?", "written as 0-9, 1,3,5 or 0-99%4")]
Image = Annotated[str, written_as(r"\S+", "a file.sqsh, or IMAGE[:TAG] as pyxis reads it")]
Signal = Annotated[
    str,
    written_as(
        r"[A-Z]+[12]?@\d+",
        "written as USR1@60: the ranks, and not the script, get the signal, here 60 seconds before the end",
    ),
]
Directive = Annotated[str, written_as(r"--?[A-Za-z][^\n\r]*", "one option of sbatch, as --qos=high")]


class SbatchSpec(Spec):
    """What a batch job asks Slurm for."""

    nodes: int | None = Field(default=None, ge=1, description="number of nodes")
    ntasks_per_node: int | None = Field(default=None, ge=1, description="ranks on each node; default: one for each GPU")
    gpus_per_node: Gpus | None = Field(default=None, description="GPUs of each node: 4, or of one type: a100:4")
    cpus_per_task: int | None = Field(default=None, ge=1, description="cores of each rank; default: --threads")
    mem: Memory | None = Field(default=None, description="memory of each node: 16G")
    time: Time | None = Field(default=None, description="longest time of the job: 30, 12:00:00, 2-00:00:00")
    partition: Name | None = Field(default=None, description="partition")
    account: Name | None = Field(default=None, description="account")
    array: Indices | None = Field(
        default=None, description="an array of jobs, each in an output folder of its own: 0-9, 0-99%4"
    )
    container_image: Image | None = Field(
        default=None, description="container image (pyxis and enroot); the folder of the job is mounted in it"
    )
    requeue: bool = Field(
        default=False, description="go on after a preemption, or before the time is over: save, queue again, --resume"
    )
    signal: Signal | None = Field(
        default=None,
        description="signal to the ranks before the time is over: USR1@60; with --requeue a model that saves gets it",
    )
    sbatch: tuple[Directive, ...] = Field(default=(), description="one more option of sbatch: '--qos=high'")

    @property
    def gpu_count(self) -> int | None:
        """The number of GPUs of each node."""
        return int(self.gpus_per_node.rpartition(":")[2]) if self.gpus_per_node else None
