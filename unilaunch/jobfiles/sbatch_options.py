"""The options that `--emit sbatch` takes, under sbatch's own names; what it refuses, and how many ranks they make."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from unilaunch.errors import SpecError
from unilaunch.spec.launch_spec import LaunchSpec, written_as
from unilaunch.spec.run_spec import Spec

Time = Annotated[str, written_as(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", "written as MINUTES, HH:MM:SS or DAYS-HH:MM:SS")]
Memory = Annotated[str, written_as(r"\d+[KMGT]?", "written as 16G")]
Gpus = Annotated[str, written_as(r"([A-Za-z][\w.-]*:)?[1-9]\d*", "written as 4 or TYPE:4, such as a100:4")]
Name = Annotated[str, written_as(r"[^\s#]+", "a name without spaces")]
Indices = Annotated[str, written_as(r"\d+([-,:]\d+)*(%\d+)?", "written as 0-9, 1,3,5 or 0-99%4")]
Image = Annotated[str, written_as(r"\S+", "a file.sqsh, or IMAGE[:TAG] as pyxis reads it")]
# Slurm takes 16 bits of seconds.
Signal = Annotated[
    str,
    written_as(
        r"[A-Z]+[12]?@0*(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])",
        "written as USR1@60: the ranks, and not the script, get the signal, here 60 seconds before the end; 65535 at "
        "most",
    ),
]
Directive = Annotated[str, written_as(r"--?[A-Za-z][^\n\r]*", "one option of sbatch, as --qos=high")]


#: Options of sbatch that this file writes itself, and what to type for them.
_OWN = {
    "ntasks": "-n", "n": "-n", "nodes": "--nodes", "N": "--nodes", "ntasks-per-node": "--ntasks-per-node",
    "gpus-per-node": "--gpus-per-node", "cpus-per-task": "--cpus-per-task", "c": "--cpus-per-task", "mem": "--mem",
    "time": "--time", "t": "--time", "partition": "--partition", "p": "--partition", "account": "--account",
    "A": "--account", "array": "--array", "a": "--array", "requeue": "--requeue", "signal": "--signal",
    "job-name": "--name", "J": "--name", "nodelist": "-H", "w": "-H",
}  # fmt: skip
_OF_A_JOB = re.compile(r"{job}|{array}")  # each job of an array has another value


class SbatchSpec(Spec):
    """What a batch job asks Slurm for."""

    name: Name | None = Field(default=None, description="the job's name; default: unilaunch- and the target's")
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
        description="signal to the ranks before the time is over: USR1@60; --grace 60 and --requeue send one, too",
    )
    sbatch: tuple[Directive, ...] = Field(default=(), description="one more option of sbatch: '--qos=high'")

    @property
    def gpu_count(self) -> int | None:
        """The number of GPUs of each node."""
        return int(self.gpus_per_node.rpartition(":")[2]) if self.gpus_per_node else None


def refuse_contradictions(spec: LaunchSpec, options: SbatchSpec, checkpoints: tuple[str, Path] | None) -> None:
    """Raise an error for options that contradict each other.

    Args:
        spec: What the user wants.
        options: What the batch job asks Slurm for.
        checkpoints: The folder of checkpoints that the user has named.

    Raises:
        SpecError: They do.
    """
    for words in options.sbatch:
        if own := _OWN.get(re.split(r"[=\s]", words, maxsplit=1)[0].lstrip("-")):
            raise SpecError(f"--sbatch '{words}': type {own} itself: other lines of the file depend on it")
    if (spec.hosts or spec.hostfile) and (options.nodes or options.ntasks_per_node):
        given = "--nodes" if options.nodes else "--ntasks-per-node"
        raise SpecError(f"{given}: the hosts of {'-H' if spec.hosts else '--hostfile'} say that: leave out one of them")
    if options.array and (shared := next(shared_folders(spec, checkpoints), None)):
        option, folder = shared
        instead = "leave it out" if shared == checkpoints else f"give {option} '{folder}/{{array}}', or none"
        raise SpecError(f"--array: all jobs of the array would write into {option} {folder}: {instead}")
    if options.requeue and not checkpoints and "{date}" in str(spec.output_dir):
        raise SpecError(
            f"--requeue: each start would write into another {spec.output_dir} and find no checkpoint: take {{job}}, "
            "which stays the same"
        )
    if options.signal and "grace" in spec.model_fields_set:
        raise SpecError(f"--signal {options.signal}: --grace {spec.grace:g} asks for another one: leave one out")
    needing_srun = [field for field in ("requeue", "signal", "container_image") if getattr(options, field)]
    needing_srun += ["grace"] if "grace" in spec.model_fields_set else []
    if needing_srun and (of_mpirun := options_of_mpirun(spec)):
        option = f"--{needing_srun[0].replace('_', '-')}"
        raise SpecError(f"{option}: srun starts the ranks then, and not mpirun: leave out {', '.join(of_mpirun)}")


def shared_folders(spec: LaunchSpec, checkpoints: tuple[str, Path] | None) -> Iterator[tuple[str, Path]]:
    """Yield option and folder of what the jobs of an array would all write into, since the user has named it."""
    if "output_dir" in spec.model_fields_set and not _OF_A_JOB.search(str(spec.output_dir)):
        yield "--output-dir", spec.output_dir
    if checkpoints:
        yield checkpoints


def options_of_mpirun(spec: LaunchSpec) -> list[str]:
    """Return the options that were given and that only mpirun can apply; srun has a working folder, too."""
    return [option for option in spec.options_of_mpirun if option != "--cwd"]


def count_ranks(spec: LaunchSpec, options: SbatchSpec) -> int | None:
    """Return the number of ranks; None if the hosts' slots say it.

    Raises:
        SpecError: The options make no number, another one than -n, or less than one rank for a node.
    """
    per_node = options.ntasks_per_node or options.gpu_count
    made = (options.nodes or 1) * per_node if per_node else None
    if spec.nprocs is None:
        if spec.hosts or spec.hostfile:
            return None
        if not made:
            raise SpecError(
                "--emit sbatch: how many ranks? Give --nodes 2 --ntasks-per-node 4, --nodes 2 --gpus-per-node 4 or -n 8"
            )
        return made
    if options.nodes and options.ntasks_per_node and spec.nprocs != made:
        raise SpecError(
            f"-n {spec.nprocs}: --nodes {options.nodes} and --ntasks-per-node {options.ntasks_per_node} make {made} "
            "ranks: leave out -n"
        )
    if options.nodes and options.nodes > spec.nprocs:
        raise SpecError(
            f"-n {spec.nprocs} --nodes {options.nodes}: {options.nodes - spec.nprocs} nodes would have no rank: give "
            f"--nodes {spec.nprocs}, or -n {options.nodes} or more"
        )
    return spec.nprocs
