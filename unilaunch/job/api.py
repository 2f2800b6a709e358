"""`unilaunch.launch(spec)`."""

import os
from typing import Any

from unilaunch import plugins
from unilaunch.job.restart import start_again
from unilaunch.launch_spec import LaunchSpec
from unilaunch.output.result import LaunchResult
from unilaunch.reading import make_task, unfold_options
from unilaunch.target import read_target


def launch(spec: LaunchSpec) -> LaunchResult:
    """Check *spec*, start its ranks with mpirun, wait for their end, and return how they ended.

    Rank 0's output is shown (`console="all"` shows every rank's); a rank that fails is no exception here, but
    `result.failure` and a returncode that is not 0.

    Raises:
        UnilaunchError: Something is not allowed or not there; nothing has been started.
    """
    target = read_target(spec.target, plugins.models())
    values: dict[str, Any] = {name: getattr(spec, name) for name in spec.model_fields_set if name != "options"}
    values |= unfold_options(spec.options, target, spec.args)
    environ = dict(os.environ)  # noqa: TID251  (the caller's environment is the job's)
    task = make_task(LaunchSpec, target, values, {name: name for name in values})
    return start_again(task, environ)
