"""Job files for the engines that clusters already have: each does what the plan says, and contains its spec."""

from unilaunch.job.emit.job_file import JobFile, emit
from unilaunch.task import Machine

__all__ = ["JobFile", "Machine", "emit"]
