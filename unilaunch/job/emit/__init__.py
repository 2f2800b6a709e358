"""Job files for the engines that clusters already have: each does what the plan says, and contains its spec."""

from unilaunch.job.emit.text import FORMATS, emit

__all__ = ["FORMATS", "emit"]
