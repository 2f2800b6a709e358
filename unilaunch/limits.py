"""The limit of open files: a process that speaks with every rank needs a few for each of them."""

import resource

#: Files that a process has open besides.
_OWN = 64


def allow_files(count: int) -> bool:
    """Raise this process's soft limit so that *count* files more than usual can be open; return whether they can.

    No further than needed: Open MPI 4 closes every file that there may be, one by one, in each process that it starts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OWN + count
    if needed > soft != resource.RLIM_INFINITY:
        reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, reachable), hard))
        except (OSError, ValueError):  # fs.nr_open is less
            return False
        return reachable >= needed
    return True
