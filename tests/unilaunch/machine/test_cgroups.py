"""The limits of control groups: this machine's own ones (version 1), and the files of version 2."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unilaunch.machine import cgroups
from unilaunch.machine.cgroups import cpu_quota, memory_limit

CGROUPS = Path("/sys/fs/cgroup")
#: Enter a cgroup, see it as a container does if that is asked for, and go on as another program.
ENTER = """
echo $$ > "$1/cgroup.procs"
if [ "$3" = container ]; then mount --bind "$1" "$2"; fi
shift 3
exec "$@"
"""
QUOTA = "from unilaunch.machine.cgroups import cpu_quota; print(cpu_quota())"
KILLED = """
import subprocess, sys
from unilaunch.machine.cgroups import oom_kills
before = oom_kills()
code = subprocess.run([sys.executable, "-c", "b'x' * (300 << 20)"], check=False).returncode
print(code, oom_kills() - before)
"""


@contextmanager
def _nested(controller: str) -> Iterator[Path]:
    """Give a new cgroup in another new one."""
    top = CGROUPS / controller
    if os.geteuid() or not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip(f"this machine lacks root or the cgroup of {controller} (v1)")
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    (own,) = [path for _, controllers, path in lines if controllers == controller]
    outer = top / own.lstrip("/") / f"unilaunch-{os.getpid()}"
    (outer / "inner").mkdir(parents=True)
    try:
        yield outer / "inner"
    finally:
        for folder in (outer / "inner", outer):
            until = time.monotonic() + 20
            while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
                time.sleep(0.05)
            folder.rmdir()


def _run_in(cgroup: Path, controller: str, seen: str, program: str) -> str:
    line = ["unshare", "--mount", "sh", "-ec", ENTER, "sh", str(cgroup), str(CGROUPS / controller), seen]
    line += [sys.executable, "-c", program]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.system
def test_the_quota_of_every_cgroup_above_holds() -> None:
    """A container sees its own only: the kernel's path of it does not exist there."""
    with _nested("cpu") as inner:
        (inner.parent / "cpu.cfs_quota_us").write_text("250000")
        assert _run_in(inner, "cpu", "host", QUOTA) == "2.5"
        (inner / "cpu.cfs_quota_us").write_text("150000")
        assert _run_in(inner, "cpu", "host", QUOTA) == "1.5"
        assert _run_in(inner, "cpu", "container", QUOTA) == "1.5"
        (inner / "cpu.cfs_quota_us").write_text("-1")
        assert _run_in(inner, "cpu", "container", QUOTA) == "None"


@pytest.mark.system
@pytest.mark.parametrize("seen", ["host", "container"])
def test_what_the_oom_killer_ends_is_counted(seen: str) -> None:
    with _nested("memory") as inner:
        (inner / "memory.limit_in_bytes").write_text(str(200 << 20))
        assert _run_in(inner, "memory", seen, KILLED) == "-9 1"


def test_the_files_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest value of all levels, and not the nearest one."""
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    (tmp_path / "own").write_text("0::/job/step/task\n")
    (tmp_path / "job" / "step" / "task").mkdir(parents=True)
    limits = {
        "job/memory.max": "2000", "job/step/memory.max": "3000", "job/step/task/memory.max": "max",
        "job/cpu.max": "400000 100000", "job/step/cpu.max": "600000 100000", "job/step/task/cpu.max": "max 100000",
    }  # fmt: skip
    for name, text in limits.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert memory_limit() == 2000
    assert cpu_quota() == 4.0
    (tmp_path / "own").write_text("0::/seen/by/the/host\n")
    assert cpu_quota() is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota() == 0.5
