"""What `--emit sbatch` refuses, and the number of ranks that its options make."""

import re
from collections.abc import Iterator
from pathlib import Path

from unilaunch.errors import SpecError
from unilaunch.job.emit.sbatch_options import SbatchSpec
from unilaunch.launch_spec import LaunchSpec

_OF_A_JOB = re.compile(r"{job}|{array}")  # each job of an array has another value


def refuse_contradictions(spec: LaunchSpec, options: SbatchSpec, checkpoints: tuple[str, Path] | None) -> None:
    """Raise an error for options that contradict each other.

    Args:
        spec: What the user wants.
        options: What the batch job asks Slurm for.
        checkpoints: The folder of checkpoints that the user has named.

    Raises:
        SpecError: They do.
    """
    if array := [words for words in options.sbatch if re.match(r"(--array|-a)\b", words)]:
        raise SpecError(f"--sbatch '{array[0]}': type --array itself: the output folders and --requeue depend on it")
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
    if of_mpirun := options_of_mpirun(spec):
        for field in ("requeue", "signal", "container_image"):
            if getattr(options, field):
                raise SpecError(
                    f"--{field.replace('_', '-')}: srun starts the ranks then, and not mpirun: leave out "
                    + ", ".join(f"--{name.replace('_', '-')}" for name in sorted(of_mpirun))
                )


def shared_folders(spec: LaunchSpec, checkpoints: tuple[str, Path] | None) -> Iterator[tuple[str, Path]]:
    """Yield option and folder of what the jobs of an array would all write into, since the user has named it."""
    if "output_dir" in spec.model_fields_set and not _OF_A_JOB.search(str(spec.output_dir)):
        yield "--output-dir", spec.output_dir
    if checkpoints:
        yield checkpoints


def options_of_mpirun(spec: LaunchSpec) -> set[str]:
    """Return the options that were given and that only mpirun can apply; srun has a working folder, too."""
    return spec.options_of_mpirun - {"cwd"}


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
