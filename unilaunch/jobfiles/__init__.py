"""Job files for Slurm and Kubernetes: each does what the plan says, and contains its spec.

Begin with `job_file.py` (the base class), then read one of them, such as `sbatch.py`.
"""

from unilaunch.jobfiles.job_file import JobFile, emit
from unilaunch.spec.task import Machine

__all__ = ["JobFile", "Machine", "emit"]
