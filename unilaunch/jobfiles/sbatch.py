"""A batch script for Slurm: the options of `--emit sbatch`, under sbatch's own names, and the lines that they make."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated

from pydantic import Field

from unilaunch.errors import REQUEUE, SpecError
from unilaunch.job.choice import launch_line, needs_no_mpi
from unilaunch.job.plan import Plan
from unilaunch.jobfiles.job_file import JobFile, spec_json
from unilaunch.launchers.mpirun import reference
from unilaunch.overriding import override
from unilaunch.record import Record, replace
from unilaunch.spec.habits import Habit, Instead, Same
from unilaunch.spec.launch_spec import LaunchSpec, written_as
from unilaunch.spec.run_spec import Spec, option_of
from unilaunch.spec.task import Machine, Task

#: What Slurm usually calls each kind of device, in --gres.
GRES = {"cuda": "gpu", "npu": "npu"}
#: Folders of the output: a job that is put into the queue again keeps its id.
FOLDER, FOLDER_IN_ARRAY = Path("log_output/{job}"), Path("log_output/{job}-{array}")
#: Seconds before the end of a job's time at which its ranks get a signal.
_NOTICE = 60
#: Ranks that go to one node if the user does not say how many nodes there are.
_ON_ONE_NODE = 64
#: Makes the secret by which the nodes of a start know each other: srun passes it on, and it is in no file.
_SECRET = (
    "UNILAUNCH_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')",
    "export UNILAUNCH_SECRET",
)
_LOOPBACK = re.compile(r"localhost|127\..*|::1")  # no node of Slurm's has such a name
#: Options of sbatch that this file writes itself, and what to type for them.
_OWN = {
    "ntasks": "-n", "n": "-n", "nodes": "--nodes", "N": "--nodes", "ntasks-per-node": "--ntasks-per-node",
    "gpus-per-node": "--gpus-per-node", "cpus-per-task": "--cpus-per-task", "c": "--cpus-per-task", "mem": "--mem",
    "time": "--time", "t": "--time", "partition": "--partition", "p": "--partition", "account": "--account",
    "A": "--account", "array": "--array", "a": "--array", "requeue": "--requeue", "signal": "--signal",
    "job-name": "--name", "J": "--name", "nodelist": "-H", "w": "-H",
}  # fmt: skip
_OF_A_JOB = re.compile(r"{job}|{array}")  # each job of an array has another value
#: Options of sbatch that become a line of the file as they are typed; --sbatch takes all others.
_AS_THEY_ARE = (
    "qos", "exclude", "constraint", "reservation", "dependency", "mail-type", "mail-user", "mem-per-cpu", "output",
    "error",
)  # fmt: skip
_SHORT = {"q": "qos", "C": "constraint", "d": "dependency", "o": "output", "e": "error"}
#: Options of sbatch that mean something else to mpirun, and options of torchrun that say what sbatch's do.
_HABITS: Mapping[str, Habit] = {
    "c": Same("--cpus-per-task"), "t": Same("--time"), "p": Same("--partition"), "A": Same("--account"),
    "a": Same("--array"), "N": Same("--nodes"), "nnodes": Same("--nodes"), "num-nodes": Same("--nodes"),
    "num-machines": Same("--nodes"), "nproc-per-node": Same("--ntasks-per-node"),
    "num-gpus": Same("--gpus-per-node"), "J": Same("--name"), "job-name": Same("--name"),
    **dict.fromkeys(("gpus", "G", "gres"), Instead("type the GPUs of each node: --gpus-per-node 4")),
    **{name: Same("--sbatch", f"--{name}={{}}") for name in _AS_THEY_ARE},
    **{short: Same("--sbatch", f"--{name}={{}}") for short, name in _SHORT.items()},
    "exclusive": Instead("type --sbatch --exclusive, or --sbatch --exclusive=user"),
}  # fmt: skip

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


class _Nodes(Record):
    """How the ranks are spread over the nodes.

    Attributes:
        hosts: The number of ranks of each node that the user has named, in their order.
        foreseen: Whether these numbers are known; else they are 0, and only mpirun can tell.
        most: The largest number of ranks of a node; None if Slurm or mpirun chooses it.
        launched: The number of ranks that one `launch` starts on each node; 0 if srun or mpirun starts the ranks.
    """

    hosts: Mapping[str, int]
    foreseen: bool
    most: int | None
    launched: int = 0

    @property
    def uneven(self) -> bool:
        """Whether the nodes get different numbers of ranks."""
        return len(set(self.hosts.values())) > 1


class Sbatch(JobFile):
    """srun starts one `launch` on each node, which starts the ranks; of a program that may need MPI, the ranks.

    If the user gave options of mpirun, mpirun does, on the hosts that Slurm has allocated.
    """

    options = SbatchSpec
    habits = _HABITS
    restarts = True

    @override
    def machine(self, options: SbatchSpec) -> Machine:
        return Machine.IMAGE if options.container_image else Machine.CLUSTER

    @override
    def complete(self, task: Task[LaunchSpec], options: SbatchSpec) -> Task[LaunchSpec]:
        """Give the job the number of ranks and an output folder of its own; a model that is to go on resumes."""
        _refuse_contradictions(task.spec, options, _checkpoints(task))
        update: dict[str, object] = {"nprocs": _count_ranks(task.spec, options)}
        if "output_dir" not in task.spec.model_fields_set:
            update["output_dir"] = FOLDER_IN_ARRAY if options.array else FOLDER
        if task.model and options.requeue:
            options_again = task.model.again(task.options, fewer_ranks=False)
            task = replace(task, options=task.model.restartable(options_again))  # Slurm requeues at a lost node too
        return replace(task, spec=task.spec.model_copy(update=update))

    @override
    def lines(self, plan: Plan, options: SbatchSpec) -> Iterator[str]:
        """Refuse to export what is no name of a variable, and more ranks on a node than it has GPUs."""
        yield from _Script(plan, options, _foresee(plan, options)).lines()


def _refuse_contradictions(spec: LaunchSpec, options: SbatchSpec, checkpoints: tuple[str, Path] | None) -> None:
    """Raise an error for options that contradict each other.

    Raises:
        SpecError: They do.
    """
    for words in options.sbatch:
        if own := _OWN.get(re.split(r"[=\s]", words, maxsplit=1)[0].lstrip("-")):
            raise SpecError(f"--sbatch '{words}': type {own} itself: other lines of the file depend on it")
    if (spec.hosts or spec.hostfile) and (options.nodes or options.ntasks_per_node):
        given = "--nodes" if options.nodes else "--ntasks-per-node"
        raise SpecError(f"{given}: the hosts of {'-H' if spec.hosts else '--hostfile'} say that: leave out one of them")
    if options.array and (shared := next(_shared_folders(spec, checkpoints), None)):
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


def _shared_folders(spec: LaunchSpec, checkpoints: tuple[str, Path] | None) -> Iterator[tuple[str, Path]]:
    """Yield option and folder of what the jobs of an array would all write into, since the user has named it."""
    if "output_dir" in spec.model_fields_set and not _OF_A_JOB.search(str(spec.output_dir)):
        yield "--output-dir", spec.output_dir
    if checkpoints:
        yield checkpoints


def _not_of_srun(spec: LaunchSpec) -> list[str]:
    """Return the options that were given and that srun does not apply, as they are typed: mpirun starts the ranks."""
    return spec.options_of_mpirun + [option_of(field) for field in ("bind_to", "oversubscribe") if getattr(spec, field)]


def _count_ranks(spec: LaunchSpec, options: SbatchSpec) -> int | None:
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


def _foresee(plan: Plan, options: SbatchSpec) -> _Nodes:
    named: dict[str, int] = Counter(row.host for row in plan.rows)
    foreseen = "?" not in named
    if not foreseen:
        named = {host.name: 0 for host in plan.request.hosts}
    hosts = named if plan.request.hosts and not any(_LOOPBACK.fullmatch(name) for name in named) else {}
    size = len(plan.rows)
    each = -(-size // options.nodes) if options.nodes else None  # else Slurm may give a node 7 of 8 ranks
    asked = options.ntasks_per_node or each or options.gpu_count
    most = max(hosts.values()) if hosts else asked and min(asked, size)  # Slurm would reserve the cores of more
    nodes = _Nodes(hosts, foreseen, most if foreseen else None)
    number = options.nodes or len(hosts) or _count_nodes(size, nodes)
    by_launch = foreseen and number and not (size % number or nodes.uneven or options.container_image)
    if by_launch and not plan.task.spec.options_of_mpirun and needs_no_mpi(plan.task):
        return replace(nodes, most=size // number, launched=size // number)
    _refuse_what_launch_does(plan.task.spec, options)
    return nodes


def _refuse_what_launch_does(spec: LaunchSpec, options: SbatchSpec) -> None:
    """Raise an error for options of a job whose ranks srun or mpirun starts, and no `launch` on each node.

    Raises:
        SpecError: The job cannot be started again, or what mpirun and what srun applies is asked for.
    """
    of_mpirun = ", ".join(_not_of_srun(spec))
    if spec.max_restarts:
        why = (
            f"mpirun starts the ranks, because of {of_mpirun}: leave one of the two out"
            if of_mpirun
            else "srun starts the ranks of a model, of a program that may need MPI, in a container, and of unequal "
            "nodes: leave it out"
        )
        raise SpecError(f"--emit sbatch --max-restarts {spec.max_restarts}: only launch starts a job again, and {why}")
    needing_srun = [field for field in ("requeue", "signal", "container_image") if getattr(options, field)]
    needing_srun += ["grace"] if "grace" in spec.model_fields_set else []
    if needing_srun and of_mpirun:
        option = option_of(needing_srun[0])
        raise SpecError(f"{option}: srun starts the ranks then, and not mpirun: leave out {of_mpirun}")


def _count_nodes(size: int, nodes: _Nodes) -> int:
    """Return the number of nodes for *size* ranks; 0 if that is left to Slurm."""
    return -(-size // nodes.most) if nodes.most else int(size <= _ON_ONE_NODE)


class _Script(Record):
    """The batch script of a job.

    Attributes:
        plan: What to start.
        options: What the batch job asks Slurm for.
        nodes: How the ranks are spread over the nodes.
    """

    plan: Plan
    options: SbatchSpec
    nodes: _Nodes

    def lines(self) -> Iterator[str]:
        """Give the lines of the file."""
        self._refuse_more_ranks_than_gpus()
        yield "#!/bin/bash"
        yield "# Written by unilaunch launch --emit sbatch; submit it with sbatch. Its spec, as --config reads it:"
        yield f"# {spec_json(self.plan)}"
        yield f"#SBATCH --job-name={self.options.name or _job_name(self.plan.task.target.name)}"
        yield from self._shape()
        yield from self._resources()
        yield from self._queue()
        yield from (f"#SBATCH {words}" for words in self.options.sbatch)
        yield "set -euo pipefail"
        yield from self._only_one()
        if self.options.container_image and self.options.nodes != 1:
            # pyxis mounts no home: the ranks of several nodes could not share the job's secret.
            yield 'export XDG_CACHE_HOME="$PWD/.cache"'
        yield from self._variables()
        yield from self._start()

    def _refuse_more_ranks_than_gpus(self) -> None:
        gpus, most = self.options.gpu_count, self.nodes.most
        if gpus and most and most > gpus and self.plan.task.spec.device != "cpu":
            raise SpecError(
                f"--gpus-per-node {self.options.gpus_per_node}: each of the {most} ranks of a node takes a GPU: start "
                f"at most {gpus} on a node"
            )

    def _shape(self) -> Iterator[str]:
        """Give the number of ranks, and of nodes, and which nodes they are."""
        size = len(self.plan.rows)
        yield f"#SBATCH --ntasks={size // self.nodes.launched if self.nodes.launched else size}"
        if number := self.options.nodes or len(self.nodes.hosts) or _count_nodes(size, self.nodes):
            yield f"#SBATCH --nodes={number}"
        if self.nodes.hosts:
            yield f"#SBATCH --nodelist={','.join(self.nodes.hosts)}"
        if self.nodes.uneven:  # else a node that Slurm fills last has too few cores for its ranks
            yield f"#SBATCH --mincpus={max(self.nodes.hosts.values()) * (self._cores() or 1)}"
        elif self.nodes.most:
            yield f"#SBATCH --ntasks-per-node={1 if self.nodes.launched else self.nodes.most}"

    def _resources(self) -> Iterator[str]:
        """Give what the ranks take of a node: cores if the user named their number, and a device for each rank."""
        kind = self.plan.rows[0].device.partition(":")[0]
        if cores := self._cores_of_task():
            yield f"#SBATCH --cpus-per-task={cores}"
        if self.options.mem:
            yield f"#SBATCH --mem={self.options.mem}"
        if self.options.gpus_per_node:
            yield f"#SBATCH --gpus-per-node={self.options.gpus_per_node}"
        elif (
            kind in GRES and self.nodes.foreseen and (self.nodes.most or _count_nodes(len(self.plan.rows), self.nodes))
        ):
            yield f"#SBATCH --gres={GRES[kind]}:{self.nodes.most or len(self.plan.rows)}"
        elif kind in GRES:
            yield f"# How many ranks a node gets is not known here: add #SBATCH --gres={GRES[kind]}:N"
        elif self.plan.task.spec.device == "auto":
            yield "# No device was seen where this was written: --gpus-per-node N asks for them."

    def _cores(self) -> int | None:
        return self.options.cpus_per_task or self.plan.task.spec.threads

    def _cores_of_task(self) -> int | None:
        """Return the cores of one of srun's tasks: a rank, or the `launch` of a node; None for Slurm's default."""
        cores = self._cores()
        return (cores or 1) * self.nodes.launched if self.nodes.launched else cores

    def _queue(self) -> Iterator[str]:
        """Give when and where the job waits and runs, where its output goes, and what happens before it is ended."""
        for name in ("time", "partition", "account", "array"):
            if value := getattr(self.options, name):
                yield f"#SBATCH --{name}={value}"
        yield f"#SBATCH --output={'%x-%A_%a' if self.options.array else '%x-%j'}.out"
        if self.options.requeue:
            yield "#SBATCH --requeue"
            yield "#SBATCH --open-mode=append"
        if notice := self.options.signal or self._notice():
            yield f"#SBATCH --signal={notice}"

    def _notice(self) -> str:
        """Return the signal before the end of the job's time; "" for none. A script may know no SIGUSR1."""
        spec, model = self.plan.task.spec, self.plan.task.model
        name = "USR1" if model is not None and model.stops_patiently else "TERM"
        if "grace" in spec.model_fields_set:
            return f"{name}@{math.ceil(spec.grace)}" if spec.grace else ""
        return f"{name}@{_NOTICE}" if self.options.requeue else ""

    def _start(self) -> Iterator[str]:
        if not self.nodes.launched and _not_of_srun(self.plan.task.spec):
            # Slurm gives every node the variables of the shell that submits the job, which need not be this one.
            inside = replace(self.plan.request.referring(), hosts=(), hostfile=None, several=False)
            yield f"exec {_join(self.plan.starter.write(inside))}"
            return
        srun = self._srun()
        if self.nodes.uneven:  # the host of each rank: Slurm would deal the ranks out evenly
            srun += f" --distribution=arbitrary --nodelist={','.join(row.host for row in self.plan.rows)}"
        for folder in self._mounted_folders():
            yield f"mkdir -p {shlex.quote(folder)}"
        program = self.plan.request.referring().program
        line = f"{srun} {_join(program)}"
        if self.nodes.launched:
            yield from _SECRET if len(self.plan.rows) > self.nodes.launched else ()
            line = f"{srun} {_join(launch_line(program, self._of_launch()))}"
        yield from _requeuing(line) if self.options.requeue else (f"exec {line}",)

    def _of_launch(self) -> dict[str, object]:
        """Return the fields of the `launch` on each node; Slurm tells it which node that is, and of how many."""
        spec = self.plan.task.spec
        fields: dict[str, object] = {"nproc_per_node": self.nodes.launched}
        if spec.max_restarts:
            fields["max_restarts"] = spec.max_restarts
        if spec.bind_to:
            fields["bind_to"] = spec.bind_to
        if "grace" in spec.model_fields_set or self.options.requeue:
            fields["grace"] = spec.grace if "grace" in spec.model_fields_set else _NOTICE
        return fields

    def _srun(self) -> str:
        words = ["srun"]
        if cores := self._cores_of_task():
            words.append(f"--cpus-per-task={cores}")
        folder = shlex.quote(str(self.plan.task.spec.cwd.absolute())) if self.plan.task.spec.cwd else ""
        if self.options.container_image:  # a container starts in its own folder, whatever --chdir says
            words.append(f"--container-image={shlex.quote(self.options.container_image)}")
            inside = folder or '"$PWD"'
            mounts = ",".join(['"$PWD:$PWD"', *(shlex.quote(f"{place}:{place}") for place in self._mounted_folders())])
            words.append(f"--container-mounts={mounts} --container-workdir={inside}")
        elif folder:
            words.append(f"--chdir={folder}")
        if self.options.requeue:
            words.append("--kill-on-bad-exit=0")  # the ranks end together, each with a code that is not 0
        return " ".join(words)

    def _mounted_folders(self) -> list[str]:
        """Return the folders outside the job's own in which the ranks of a container write: they are mounted, too.

        Raises:
            SpecError: A folder cannot be mounted.
        """
        checkpoints = _checkpoints(self.plan.task)
        named = [("--output-dir", self.plan.task.spec.output_dir), *([checkpoints] if checkpoints else [])]
        folders = []
        for option, folder in named if self.options.container_image else ():
            fixed = Path(*takewhile(lambda part: "{" not in part, folder.parts))
            if ".." in fixed.parts or re.search("[:,]", str(fixed)):
                raise SpecError(
                    f"{option} {folder}: a container cannot mount it: give an absolute path without : , and .."
                )
            folders += [str(fixed)] if fixed.is_absolute() else []
        return list(dict.fromkeys(folders))

    def _only_one(self) -> Iterator[str]:
        """Give the line that refuses `sbatch --array`, if the jobs of an array would write into the same folder."""
        shared = next(_shared_folders(self.plan.task.spec, _checkpoints(self.plan.task)), None)
        if shared and not self.options.array:
            option, folder = shared
            said = (
                f"unilaunch: sbatch --array: all jobs of the array would write into {option} {folder}: write this file "
                "again with launch --emit sbatch --array"
            )
            yield f"if [[ -n ${{SLURM_ARRAY_TASK_ID:-}} ]]; then echo {shlex.quote(said)} >&2; exit 2; fi"

    def _variables(self) -> Iterator[str]:
        """Give the `-x NAME=V` of the user; Slurm passes on by itself what is exported where sbatch is called."""
        hidden = self.plan.request.secret_names
        for text in self.plan.request.options.export:
            name, equals, value = text.partition("=")
            if not name.isidentifier():  # no shell can hold it
                raise SpecError(f"-x {name}: a batch script cannot export it: expected letters, digits and _")
            if equals and name not in hidden:
                yield f"export {name}={shlex.quote(value)}"
        for name in hidden:
            yield f': "${{{name}:?export it before sbatch: its value is a secret and not written here}}"'


def _checkpoints(task: Task[LaunchSpec]) -> tuple[str, Path] | None:
    return task.model.checkpoint_folder(task.options) if task.model else None


def _requeuing(line: str) -> Iterator[str]:
    """Give the lines that start the ranks, and put the job into the queue again once they have saved.

    Slurm sends SIGTERM to this script, too, if it ends the whole job: the script then waits for the ranks. After a
    preemption Slurm puts the job into the queue itself, and a job that the user has cancelled is not to come back.
    """
    # One job of an array has the id of the array: with that id Slurm would stop and requeue all of them.
    yield "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
    yield "ended= code=0"
    yield "trap 'ended=yes' TERM  # Slurm ends the job: wait for the ranks, which save"
    yield f"{line} || code=$?"
    yield f'if [[ $code = {REQUEUE} && -z $ended ]]; then scontrol requeue "${{job:-$SLURM_JOB_ID}}"; fi'
    yield 'exit "$code"'


def _join(words: Sequence[str]) -> str:
    """Return a shell's line; a reference to a variable is its value."""
    name = re.escape(reference("NAME")).replace("NAME", "([^']*?)")
    return re.sub(name, r"""'"$\1"'""", shlex.join(words))  # shlex puts a word with a reference between '


def _job_name(target: str) -> str:
    """Return the target's name as a directive and a file's name can hold it: sbatch refuses one with a space."""
    return "unilaunch-" + re.sub(r"[^A-Za-z0-9._-]", "-", target.rpartition("/")[2])
