"""How much memory this process has held."""

import re
import resource
from pathlib import Path


def peak_memory() -> int:
    """Return the most bytes that this process has held; a page of shared memory counts in part, as in Linux's Pss.

    The kernel's own maximum counts the buffers that the ranks of a host share once for each rank. The shared pages are
    those of now: call it while the buffers are mapped, and the other ranks live.
    """
    peak = _kilobytes("status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shared = _kilobytes("status", "RssShmem")
    return 1024 * (peak - shared + (_kilobytes("smaps_rollup", "Pss_Shmem") or shared))


def resident_memory() -> int:
    """Return the bytes that this process holds now; 0 where the kernel does not say."""
    return 1024 * _kilobytes("status", "VmRSS")


def _kilobytes(file: str, name: str) -> int:
    """Return a figure of /proc/self; 0 where the kernel has none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self", file).read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
