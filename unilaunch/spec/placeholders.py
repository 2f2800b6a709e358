"""Placeholders in the name of an output folder, so that each job gets its own folder."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

from unilaunch.errors import SpecError

#: Variables in which resource managers, and manifests of `--emit` (JOB_ID), give a job's id, and its index in an array.
_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID", "JOB_ID")
_ARRAY = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "LSB_JOBINDEX", "SGE_TASK_ID")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def has_known_placeholders(folder: Path) -> bool:
    """Return whether every placeholder is `{job}`, `{array}` or `{date}`; True also without placeholders."""
    return set(_PLACEHOLDER.findall(str(folder))) <= {"job", "array", "date"}


def placeholder_values(environ: Mapping[str, str], job: str) -> dict[str, str]:
    """Return the value of each placeholder at this moment.

    Args:
        environ: The process's environment.
        job: The job's id, if no resource manager gives one.
    """
    array = next((environ[name] for name in _ARRAY if name in environ), "")
    return {
        "job": next((environ[name] for name in _JOB if environ.get(name)), job),
        "array": "" if array == "undefined" else array,  # SGE's value outside an array
        "date": time.strftime("%Y%m%d-%H%M%S"),
    }


def replace_placeholders(folder: Path, values: Mapping[str, str]) -> Path:
    """Return the folder of a job.

    Raises:
        SpecError: The name contains `{array}`, and the job is not in an array.
    """
    if "{array}" in str(folder) and not values["array"]:
        raise SpecError(
            f"--output-dir {folder}: {{array}} is a job's index in an array of jobs, and none of {', '.join(_ARRAY)} "
            "is set: submit an array, or take {job} or {date}"
        )
    return Path(_PLACEHOLDER.sub(lambda found: values[found[1]].replace("/", "_"), str(folder)))
