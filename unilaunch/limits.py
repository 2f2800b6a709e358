"""The limit of open files: a process with a connection to every rank needs a few files for each."""

import resource

#: Further files that a process has open.
_OWN = 64


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
