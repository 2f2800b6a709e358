"""Fingerprint of the inherited process state: only ranks with equal fingerprints are forked from the same agent."""

import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unilaunch import launchers
from unilaunch.start_variables import RESTARTS, SPEC

#: Variables that differ from one start of a job to the next: our own, and those of a login on another host.
_OF_A_START = {RESTARTS, SPEC, "SSH_CLIENT", "SSH_CONNECTION", "XDG_SESSION_ID"}
#: Variables that make an import depend on the process: on its CPUs, or on the rank that a log file is named after.
_OF_A_PROCESS = (
    "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "GLOG_log_dir",
)  # fmt: skip
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def circumstances(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fingerprint of this process, as JSON; None if each process must import by itself.

    The fingerprint does not contain the CPUs: the agent sets them after the fork.

    Args:
        environ: The process's environment.
    """
    folder = _link("/proc/self/cwd")
    if not folder or any(name.startswith(_OF_A_PROCESS) for name in environ):
        return None
    of_launchers = tuple(prefix for launcher in launchers.known().values() for prefix in launcher.prefixes)
    return {
        "folder": folder,
        "mask": _mask(),
        "command": [sys.executable, *_command(environ)],
        "variables": {
            name: value
            for name, value in environ.items()
            if not name.startswith(of_launchers) and name not in _OF_A_START
        },
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
        "users": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
        "cgroup": _read("/proc/self/cgroup"),
        "namespaces": [_link(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "root": _link("/proc/self/root"),
        "limits": [list(resource.getrlimit(getattr(resource, name))) for name in LIMITS],
        "scheduling": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "oom": _read("/proc/self/oom_score_adj"),
        "memory": _read("/proc/self/numa_maps", 64).split()[1:2],  # the memory policy, which numactl sets
    }


def _command(environ: Mapping[str, str]) -> list[str]:
    """Return the command line, without the spec if it is passed separately: it differs when the job is restarted."""
    words = list(sys.orig_argv)
    if SPEC in environ and "--spec" in words:
        del words[words.index("--spec") + 1]
    return words


def _mask() -> int:
    mask = os.umask(0o077)  # the mask cannot be read without setting it
    os.umask(mask)
    return mask


def _read(path: str, size: int = -1) -> str:
    with suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
        return file.read(size)
    return ""


def _link(path: str) -> str:
    with suppress(OSError):
        return str(Path(path).readlink())
    return ""
