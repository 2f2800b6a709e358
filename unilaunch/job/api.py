"""`unilaunch.launch` and `unilaunch.start`: a job from Python."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unilaunch.errors import SpecError, say
from unilaunch.folder.result import LaunchResult
from unilaunch.interfaces import plugins
from unilaunch.job.arguments import Arguments, words
from unilaunch.job.function import Found, check_options, find_function
from unilaunch.job.handle import Job
from unilaunch.job.restart import prepare
from unilaunch.record import replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import make_task, resolve_ranks, unfold_options
from unilaunch.spec.target import LOADING, Target, read_target
from unilaunch.spec.variables import variable_of

#: What ranks run: a spec, a function, or a target (a model's name, a script, "package.module:function").
Program = LaunchSpec | Callable[..., Any] | str | Path


def launch(program: Program, *, check: bool | None = None, **options: Any) -> LaunchResult:
    """Run a job, wait for its end, and return how it ended. `start` describes the arguments.

    Rank 0's output is shown (`console="all"` shows every rank's). Ctrl-C stops the job: the ranks have `grace` seconds
    to end; then KeyboardInterrupt is raised.

    Args:
        program: What the ranks run.
        check: Raise JobFailed if the job fails or is stopped (the default); if False, only the result shows that.
        options: Fields of LaunchSpec, and the function's arguments or the model's options.

    Raises:
        UnilaunchError: An argument is not valid, or something is missing; nothing has been started.
        JobFailed: The job has failed or was stopped.
        KeyboardInterrupt: The user has pressed Ctrl-C, and the job has ended.
    """
    own = {} if check is None else {"check": check}
    result = _start(program, options, own, attended=True).wait()
    if check is False:
        return result
    if result.interrupted and result.returncode == 128 + signal.SIGINT:
        raise KeyboardInterrupt  # asyncio's handler has raised nothing here
    result.raise_if_failed()
    return result


def start(program: Program, **options: Any) -> Job:
    """Start a job, and return it while it runs.

    The ranks of `start(train, nprocs=2, lr=0.1)` call `train(lr=0.1)`: options that are fields of LaunchSpec configure
    the job, and the other options are the function's arguments. `args={"seed": 1}` or `args=[1]` passes arguments that
    have the name of a field too. If the program is a model, the other options are the model's options. If it is a
    script, `args` is its `sys.argv[1:]`.

    Arguments and values can be JSON values (a tuple arrives as a list, the keys of a dict as text), numpy arrays, and
    tensors of the installed frameworks, which arrive on cpu. Arrays are sent as npy data; nothing is pickled.

    Args:
        program: What the ranks run: a function of a module or of the calling script, a target such as "train.py" or
            "package.module:function", or a whole LaunchSpec.
        options: See above.

    Raises:
        UnilaunchError: An argument is not valid, or something is missing; nothing has been started.
    """
    return _start(program, options, {}, attended=False)


def _start(program: Program, options: Mapping[str, Any], own: Mapping[str, Any], *, attended: bool) -> Job:
    """Start a job; `own` are the caller's options that are no field of LaunchSpec."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise SpecError("the current folder no longer exists: go to another one") from None
    if file := getattr(sys.modules["__main__"], LOADING, None):
        raise SpecError(f'{file}: the ranks load this file too: call launch under if __name__ == "__main__":')
    files = TemporaryDirectory(prefix="unilaunch-")
    try:
        return _prepare(program, options, own, files, attended=attended)
    except BaseException:
        files.cleanup()
        raise


def _prepare(
    program: Program, options: Mapping[str, Any], own: Mapping[str, Any], files: "TemporaryDirectory[str]", *,
    attended: bool,
) -> Job:  # fmt: skip
    """Read the task, check it, and start the job."""
    environ = dict(os.environ)  # noqa: TID251  (the job gets the caller's environment)
    found, values = _read(program, dict(options))
    if found.target.kind == "function":
        of_spec = isinstance(program, LaunchSpec) and "args" not in options
        given = Arguments.among(values, values.pop("args", ()) if of_spec else ())
        if callable(program):
            check_options(program, {**options, **own}, given)
        values["args"] = words(given, Path(files.name), str(found.target))
    values["target"] = str(found.target)
    values = _of_the_machine(found.target, environ) | values
    resolve_ranks(values, environ)
    task = make_task(LaunchSpec, found.target, values, {name: name for name in values})
    if not attended:  # the caller may go to another folder while the job runs
        task = replace(task, spec=task.spec.model_copy(update={"output_dir": Path.cwd() / task.spec.output_dir}))
    if task.spec.nnodes > 1 and task.spec.node_rank != 0:
        raise SpecError(f"node_rank={task.spec.node_rank}: Python can be node 0; on the others type unilaunch launch")
    plan = prepare(task, environ)
    large = sum(file.stat().st_size for file in Path(files.name).iterdir())
    if plan.request.several and large:
        raise SpecError(
            f"{found.target}: its arguments hold {large / 1e6:.1f} MB of arrays, which other hosts cannot read: save "
            "them in a file that all hosts can read, and pass its path"
        )
    if found.note:
        say(found.note)
    return Job(plan, environ, files, attended=attended)


def _of_the_machine(target: Target, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a machine or a container says once, in a variable, for all starts: root's leave, the data folder."""
    of_model = plugins.models()[target.name].spec.model_fields if target.kind == "model" else {}
    fields = ["allow_run_as_root", *({"data_dir"} & set(of_model))]
    return {field: said for field in fields if (said := environ.get(variable_of(field, environ)))}


def _read(program: Program, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
    """Return what the ranks run, and the values of the spec together with the arguments or the model's options."""
    if isinstance(program, str | Path):
        return Found(read_target(str(program), plugins.named_models(str(program)))), options
    if not isinstance(program, LaunchSpec):
        found = find_function(program)
        if roots := [str(root) for root in found.roots if root != Path.cwd() or "cwd" in options]:
            env = options.get("env", {})
            below = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))  # noqa: TID251
            path = os.pathsep.join(filter(None, [*roots, below]))
            options["env"] = {**env, "PYTHONPATH": path}
        return found, options
    values = {name: getattr(program, name) for name in program.model_fields_set if name != "options"}
    found = Found(read_target(program.target, plugins.named_models(program.target)))
    return found, values | unfold_options(program.options, found.target, program.args) | options
