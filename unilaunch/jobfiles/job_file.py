"""Job files by entry point: each writes what a plan says in the form of another engine.

A job file is one class and one entry point in the group "unilaunch.jobfiles"; `--emit` takes the entry point's name.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from unilaunch.errors import SpecError
from unilaunch.interfaces import plugins
from unilaunch.job.plan import Plan, make_plan
from unilaunch.spec.habits import Habit
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import Spec, validate
from unilaunch.spec.task import Machine, Task

#: Seconds of --grace, of Slurm's notice before the end of a job: a number of 16 bits.
LONGEST = 65535


class JobFile(ABC):
    """A form of job file."""

    #: The type of its own options.
    options: ClassVar[type[Spec]] = Spec
    #: The engine starts a job that has failed again, `--max-restarts` times at most.
    restarts: ClassVar[bool] = False
    #: Options of the engine's own commands that `launch --emit` takes, as `unilaunch.spec.habits.LAUNCH` has them.
    habits: ClassVar[Mapping[str, Habit]] = {}

    def machine(self, options: Any) -> Machine:  # noqa: ARG002
        """Return where the job will run.

        Args:
            options: Its own options, of the type `self.options`.
        """
        return Machine.CLUSTER

    def complete(self, task: Task[LaunchSpec], options: Any) -> Task[LaunchSpec]:  # noqa: ARG002
        """Return the task with what the options say of it.

        Args:
            task: What the user wants.
            options: Its own options, of the type `self.options`.

        Raises:
            SpecError: Task and options contradict each other.
        """
        return task

    @abstractmethod
    def lines(self, plan: Plan, options: Any) -> Iterator[str]:
        """Give the file's lines.

        Args:
            plan: What to start.
            options: Its own options, of the type `self.options`.

        Raises:
            SpecError: The plan cannot be written in this form.
        """


def emit(kind: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the job file of *kind* for what the command line says.

    Args:
        kind: The entry point's name.
        given: The options of `launch` as text, by field; under "job_file" the job file's own.
        environ: The process's environment.

    Raises:
        SpecError: An option is wrong, or the plan cannot be written in this form.
        PluginError: There is no such form, or no such model or backend.
    """
    form: JobFile = plugins.make(plugins.JOB_FILES, kind)
    options = validate(form.options, given.get("job_file", {}), {})
    machine = form.machine(options)
    task = read_task(LaunchSpec, {name: given[name] for name in given if name != "job_file"}, environ, machine)
    if task.spec.nproc_per_node and getattr(options, "nodes", None):
        raise SpecError(
            f"--nproc-per-node {task.spec.nproc_per_node} counts the ranks of each host: leave it out, and give the "
            "number of all ranks: -n 8"
        )
    if task.spec.nnodes > 1:
        instead = f"type --nodes {task.spec.nnodes}" if "nodes" in form.options.model_fields else "leave it out"
        raise SpecError(f"--emit {kind} --nnodes {task.spec.nnodes}: {instead}")
    if task.spec.max_restarts and not form.restarts:
        raise SpecError(
            f"--emit {kind} --max-restarts {task.spec.max_restarts}: only launch starts a job again: leave it out, or "
            "start launch itself from a job file of your own"
        )
    if task.spec.grace > LONGEST:
        raise SpecError(f"--emit {kind} --grace {task.spec.grace:g}: expected at most {LONGEST} seconds")
    if task.spec.observe:
        raise SpecError(f"--emit {kind} --observe {task.spec.observe[0]}: only launch tells the numbers: leave it out")
    if task.spec.elastic:
        raise SpecError(f"--emit {kind} --elastic: only launch leaves lost hosts out: leave it out")
    plan = make_plan(form.complete(task, options), environ, machine)
    return "\n".join(form.lines(plan, options)) + "\n"


def spec_json(plan: Plan) -> str:
    """Return the spec as one line of JSON, which `launch --config FILE.json` reads."""
    return json.dumps(plan.task.spec.shown(plan.task.options, whole=False), sort_keys=True)
