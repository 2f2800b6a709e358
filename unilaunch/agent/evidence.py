"""Find common causes of a rank's failure in the system's records; each is one line that also says what to do."""

import os
import resource
import sys
from collections.abc import Sequence

from unilaunch.folder.failure import Cause, Failure
from unilaunch.machine.cgroups import memory_limit
from unilaunch.rank.status import MEETING_HOSTS

_FEW = 64 << 20  # fewer free bytes in /dev/shm than this are too few


def find_evidence(failure: Failure, killed: int, peak: int) -> list[str]:
    """Return the possible causes of *failure*, one line each: those that the rank itself knows come first.

    Args:
        failure: As in `failure.json`.
        killed: How many processes the OOM killer has ended since the rank started.
        peak: The rank's peak memory, in bytes.
    """
    said = " ".join([failure.error, failure.message, *failure.last_lines])
    return [
        *failure.evidence,
        *_out_of_memory(failure, killed, peak),
        *_limits(said, failure),
        *_shared_memory(failure),
        *_device(said, failure),
        *_store(said),
        *_other_python(failure),
    ]


def _out_of_memory(failure: Failure, killed: int, peak: int) -> Sequence[str]:
    if failure.signal != "SIGKILL":
        return []
    if killed:
        limit = memory_limit()
        of = f" of {_size(limit)}" if limit else ""
        return [f"the kernel's OOM killer ended {killed} process(es) of this cgroup{of}; peak memory {_size(peak)}"]
    return [f"SIGKILL comes from the OOM killer (see dmesg), a scheduler or a person; peak memory {_size(peak)}"]


def _limits(said: str, failure: Failure) -> Sequence[str]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    short = any(
        word in said for word in ("MemoryError", "bad_alloc", "Cannot allocate memory", "can't allocate memory")
    )
    found = []
    if short and limit != resource.RLIM_INFINITY:
        found.append(f"ulimit -v allows this rank {_size(limit)} of addresses: raise it, or start fewer ranks")
    if "Too many open files" in said:
        found.append(f"ulimit -n allows {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files: raise it")
    if failure.signal == "SIGXCPU":
        found.append("ulimit -t: its processor time was used up")
    if "No space left on device" in said or failure.signal == "SIGXFSZ":
        found.append("a disk is full, or ulimit -f is reached: make room, or choose another --output-dir")
    return found


def _shared_memory(failure: Failure) -> Sequence[str]:
    if failure.signal != "SIGBUS":
        return []
    try:
        left = os.statvfs("/dev/shm")  # noqa: S108  (this file system may be full)
    except OSError:
        return []
    free = left.f_bavail * left.f_frsize
    hint = ": too few; in a container start it with --shm-size" if free < _FEW else ""
    return [f"SIGBUS is often a full /dev/shm: {_size(free)} of {_size(left.f_blocks * left.f_frsize)} are free{hint}"]


def _device(said: str, failure: Failure) -> Sequence[str]:
    if "invalid device ordinal" not in said:
        return []
    return [f"the program chose a device that is not there; unilaunch gave this rank {failure.device}"]


def _store(said: str) -> Sequence[str]:
    """Return what to do if a process that the rank has started wants to serve the store that rank 0 serves."""
    if "EADDRINUSE" not in said or "DistNetworkError" not in said:
        return []
    words = (
        "if the port is MASTER_PORT, rank 0 itself serves the store there: a script that starts the training as a "
        "child process must become it (os.execv), and a group of child processes alone must take another port"
    )
    return [words]


def _other_python(failure: Failure) -> Sequence[str]:
    """Return what to type if mpirun ended this rank before the ranks of other hosts came, and a venv is in use.

    There a bare mpirun finds no Python, or one without unilaunch, and only mpirun or that Python can name the fault.
    """
    is_elsewhere = failure.cause is Cause.ENDED_FROM_OUTSIDE and failure.phase == MEETING_HOSTS
    if not is_elsewhere or sys.prefix == sys.base_prefix:
        return []
    line = f"mpirun -x PATH ..., or mpirun ... {sys.executable} -m unilaunch run ..."
    return [f"the ranks of other hosts did not come: if mpirun found no python there, or not unilaunch, type {line}"]


def _size(number: int) -> str:
    return f"{number / (1 << 30):.1f} GiB" if number >= 1 << 30 else f"{number / (1 << 20):.0f} MiB"
