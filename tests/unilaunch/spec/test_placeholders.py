"""`--output-dir 'runs/{job}'`."""

import re
from pathlib import Path

import pytest

from unilaunch.errors import SpecError
from unilaunch.spec.placeholders import placeholder_values, replace_placeholders


@pytest.mark.parametrize(("environ", "job", "array"), [
    ({"SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"}, "17", "0"),
    ({"PBS_JOBID": "8[3].head/x", "PBS_ARRAY_INDEX": "3"}, "8[3].head_x", "3"),
    ({"JOB_ID": "5", "SGE_TASK_ID": "7"}, "5", "7"), ({"SLURM_ARRAY_TASK_ID": "2"}, "own", "2"),
])  # fmt: skip
def test_what_each_stands_for(environ: dict[str, str], job: str, array: str) -> None:
    found = replace_placeholders(Path("runs/{job}/{array}-{date}"), placeholder_values(environ, "own"))
    assert re.fullmatch(re.escape(f"runs/{job}/{array}-") + r"\d{8}-\d{6}", str(found))
    assert replace_placeholders(found, {}) == found


@pytest.mark.parametrize("environ", [{}, {"SGE_TASK_ID": "undefined"}])
def test_a_job_outside_an_array_has_no_index(environ: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="index in an array of jobs, and none of SLURM_ARRAY_TASK_ID"):
        replace_placeholders(Path("runs/{array}"), placeholder_values(environ, "own"))
