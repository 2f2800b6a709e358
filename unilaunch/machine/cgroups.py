"""Read the limits of this process's control groups (cgroups), version 1 or 2, and whom the OOM killer has ended."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")  # the kernel's list of this process's cgroups
_NO_LIMIT = 1 << 60  # bytes; version 1 says so with a large number


def read_cgroups(controller: str, *names: str) -> Iterator[list[str]]:
    """Yield the texts of the files *names* in this process's cgroup and in those above it, nearest first.

    A limit of any of them holds. A container may see the kernel's path of its cgroup, of which only the end exists in
    it, as its root.

    Args:
        controller: "memory" or "cpu".
        names: The names of the files; a cgroup that lacks one of them is left out.
    """
    with suppress(OSError):
        for line in _OWN.read_text(encoding="ascii").splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and controller not in controllers.split(","):
                continue
            top = _ROOT / ("" if number == "0" else controller)
            for folder in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
                with suppress(OSError):
                    yield [(folder / name).read_text(encoding="ascii") for name in names]
                if folder == top:
                    break


def memory_limit() -> int | None:
    """Return the bytes of memory that this process's cgroups allow; None without a limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [text.strip() for name in names for (text,) in read_cgroups("memory", name)]
    limit = min((int(text) for text in texts if text.isdigit()), default=_NO_LIMIT)
    return limit if limit < _NO_LIMIT else None


def oom_kills() -> int:
    """Return how many processes the OOM killer has ended in this process's memory cgroup, version 2 or 1."""
    texts = [text for name in ("memory.events", "memory.oom_control") for (text,) in read_cgroups("memory", name)]
    counters = dict(line.split() for line in "".join(texts[:1]).splitlines())
    return int(counters.get("oom_kill", 0))


def cpu_quota() -> float | None:
    """Return how many processors' time this process's cgroups allow; None without a limit."""
    pairs = [text.split() for (text,) in read_cgroups("cpu", "cpu.max")]
    pairs += read_cgroups("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return min((int(quota) / int(period) for quota, period in pairs if quota.strip().isdigit()), default=None)
