"""Limits of the system: open files, of which a process needs a few for each connection, and probes of a connection."""

import math
import resource

#: Further files that a process has open.
_OWN = 64
#: Most probes of a silent connection that Linux sends.
_PROBES = 127


def allow_files(count: int) -> bool:
    """Raise this process's soft limit so that *count* files more than usual can be open; return whether they can.

    The limit is raised no further than needed: Open MPI 4 closes every possible file, one by one, in each process that
    it starts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OWN + count
    if needed > soft != resource.RLIM_INFINITY:
        reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, reachable), hard))
        except (OSError, ValueError):  # fs.nr_open is smaller
            return False
        return reachable >= needed
    return True


def probes(seconds: float) -> tuple[int, int]:
    """Return the seconds between two probes of a silent connection, and the number of probes in *seconds*."""
    pause = math.ceil(seconds / _PROBES)
    return pause, math.ceil(seconds / pause)


def files_for_strangers(most: int) -> int:
    """Return how many connections of unknown callers this process may keep: *most*, or half of its open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // 2)
