"""Keep freed memory in the process."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt(3)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed; do nothing where it is not glibc.

    Each epoch allocates the same arrays again, and fresh pages cost more time than what is computed in them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_MMAP_MAX, 0)  # else all that is larger than 32 MB goes back to the system at once
    mallopt(_TRIM_THRESHOLD, -1)
