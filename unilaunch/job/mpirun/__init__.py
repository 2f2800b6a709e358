"""mpirun's command line: one module for each dialect, of the same name as the environment that its ranks will read."""

from unilaunch.job.mpirun.find import Mpirun, find_mpirun

__all__ = ["Mpirun", "find_mpirun"]
