"""The limits of control groups. That the OOM killer is noticed is in the fault matrix."""

from pathlib import Path

import pytest

from unilaunch.machine import cgroups
from unilaunch.machine.cgroups import cpu_quota, memory_limit


@pytest.fixture(autouse=True)
def _kernels_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")


def test_the_files_of_version_2(tmp_path: Path) -> None:
    """The smallest value of all levels, and not the nearest one."""
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


def test_the_files_of_version_1(tmp_path: Path) -> None:
    """A container sees its own cgroup as the root: the kernel's path of it does not exist there."""
    (tmp_path / "own").write_text("4:memory:/job/step\n3:cpu,cpuacct:/job/step\n")
    (tmp_path / "cpu" / "job" / "step").mkdir(parents=True)
    levels = ("", "-1", None), ("", "250000", 2.5), ("job", "400000", 2.5), ("job/step", "150000", 1.5)
    for place, quota, expected in levels:
        (tmp_path / "cpu" / place / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (tmp_path / "cpu" / place / "cpu.cfs_period_us").write_text("100000\n")
        assert cpu_quota() == expected
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2000\n")
    assert memory_limit() == 2000
