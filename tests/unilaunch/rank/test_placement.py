"""Devices and threads, from what all ranks see."""

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from unilaunch.errors import EnvironmentMismatchError, PlacementError
from unilaunch.machine.devices import absent_devices, visible_devices
from unilaunch.rank.placement import Facts, place

KINDS = ("cuda", "npu", "cpu")
MASKS = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


def _facts(
    host: str, cuda: list[str], cores: list[int] | None = None, npu: Sequence[str] = (), quota: float | None = None,
    threads: int | None = None,
) -> Facts:  # fmt: skip
    devices = {"cuda": cuda, "npu": list(npu)}
    mine = sum(1 << core for core in cores or [0, 1, 2, 3])
    return Facts(
        name=host, host=f"{host} boot", folder="/", cores=mine, quota=quota, threads=threads, devices=devices,
        monitor="", start="", placeholders={},
    )  # fmt: skip


@pytest.mark.parametrize(("mask", "files", "expected"), [
    (None, [], []), (None, ["nvidia0", "nvidia1", "nvidiactl"], ["0", "1"]),
    ("2,3", ["nvidia0", "nvidia1", "nvidia2", "nvidia3"], ["2", "3"]), ("2,3", [], []),
    ("0,1", ["dxg"], ["0", "1"]),  # one file for all, on Windows
    ("0,1,2,3", ["nvidia0", "nvidia1"], ["0", "1"]),  # more than there are
    ("none", ["nvidia0"], []), ("", ["nvidia0"], []), ("0,-1,1", ["nvidia0", "nvidia1"], ["0"]),
    ("0,0", ["nvidia0", "nvidia1"], []),
    ("GPU-8f2, GPU-1a", ["nvidia0", "nvidia1"], ["GPU-8f2", "GPU-1a"]), ("GPU-8f2", [], []),
    ("MIG-8f2, MIG-1a", ["nvidia0"], ["MIG-8f2"]),
])  # fmt: skip
def test_visible_devices(mask: str | None, files: list[str], expected: list[str], tmp_path: Path) -> None:
    """The mask where there is one, else the device files."""
    for name in files:
        (tmp_path / name).touch()
    assert visible_devices({} if mask is None else {MASKS[0]: mask}, tmp_path)["cuda"] == expected
    (tmp_path / "davinci0").touch()
    assert visible_devices({MASKS[1]: "4,5"}, tmp_path)["npu"] == ["4", "5"]  # Ascend's have a variable of their own
    assert visible_devices({}, tmp_path)["npu"] == ["0"]


@pytest.mark.parametrize(("value", "files", "expected"), [
    ("0", [], ["0"]), ("GPU-8f2", [], ["GPU-8f2"]), ("0,5", ["nvidia0"], ["5"]), ("0", ["nvidia0"], []), ("-1", [], []),
])  # fmt: skip
def test_devices_that_are_not_there_are_named(
    value: str, files: list[str], expected: list[str], tmp_path: Path
) -> None:
    """A variable that hides all devices names none."""
    for name in files:
        (tmp_path / name).touch()
    lines = absent_devices({"CUDA_VISIBLE_DEVICES": value}, tmp_path)
    assert [line for line in lines if f": {','.join(expected)} is not there" in line] == lines
    assert len(lines) == bool(expected)


@pytest.mark.parametrize("variable", MASKS)
def test_devices_without_commas_are_refused(variable: str, tmp_path: Path) -> None:
    """The job would run on one of them, or on the CPU."""
    with pytest.raises(EnvironmentMismatchError, match=f"{variable}='0 1': put commas between the devices: 0,1"):
        visible_devices({variable: "0 1"}, tmp_path)
    assert visible_devices({variable: " 0, 1 "}, tmp_path)


DENIED = """
import os, sys
from pathlib import Path
from unilaunch.machine.devices import visible_devices
folder = Path(sys.argv[1])
(folder / "cgroup.procs").write_text("0")
print(*visible_devices({"CUDA_VISIBLE_DEVICES": "0"}, Path(sys.argv[2]))["cuda"])
print(*visible_devices({}, Path(sys.argv[2]))["cuda"])
"""


@pytest.mark.system
def test_a_device_is_named_by_its_file_where_the_others_are_denied(tmp_path: Path) -> None:
    """Srun --gpus-per-task=1: each task has CUDA_VISIBLE_DEVICES=0, and its cgroup makes that another device."""
    cgroups = Path("/sys/fs/cgroup/devices")
    if os.geteuid() or not os.access(cgroups / "cgroup.procs", os.W_OK):
        pytest.skip("this machine lacks root or the cgroup of devices (v1)")
    cgroup = cgroups / f"unilaunch-{os.getpid()}"
    for number in range(3):
        os.mknod(tmp_path / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(195, number))
    cgroup.mkdir()
    try:
        for number in (0, 2):
            (cgroup / "devices.deny").write_text(f"c 195:{number} rwm")
        line = [sys.executable, "-c", DENIED, str(cgroup), str(tmp_path)]
        shown = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    finally:
        cgroup.rmdir()
    assert shown.split() == ["1", "1"]


def test_local_rank_takes_its_device_on_uneven_hosts() -> None:
    """Two ranks on one host and one on another, placed round-robin."""
    facts = [_facts("a", ["0", "1"]), _facts("b", ["0"]), _facts("a", ["0", "1"])]
    placements = place("cuda", KINDS, None, facts)
    assert [(p.device, p.index) for p in placements] == [("cuda", 0), ("cuda", 0), ("cuda", 1)]
    assert str(placements[2]) == "cuda:1"


@pytest.mark.parametrize(("facts", "words"), [
    ([_facts("a", ["0"]), _facts("a", ["0"])], "2 ranks on this host see 1"),
    ([_facts("a", ["MIG-1"]), _facts("a", ["MIG-1"])], "NCCL connects no ranks that share a GPU: start at"),
    ([_facts("a", ["0", "1"]), _facts("b", [])], "rank 1 on b: no cuda device is visible"),
])  # fmt: skip
def test_too_few_devices_are_refused(facts: list[Facts], words: str) -> None:
    """With the rank, the host, and what to do."""
    with pytest.raises(PlacementError, match=words):
        place("cuda", KINDS, None, facts)


@pytest.mark.parametrize(("facts", "device"), [
    ([_facts("a", ["0"]), _facts("b", ["0"])], "cuda"),
    ([_facts("a", ["0"], npu=["0"]), _facts("b", [], npu=["0"])], "npu"),
    ([_facts("a", [])], "cpu"),
])  # fmt: skip
def test_auto_takes_what_every_rank_has(facts: list[Facts], device: str) -> None:
    """Never one rank on a GPU and another on the processor."""
    assert {p.device for p in place("auto", KINDS, None, facts)} == {device}


def test_auto_does_not_leave_a_device_idle_because_one_host_lacks_it() -> None:
    """The whole job would train on CPU and say nothing."""
    message = "^rank 1 on b: no cuda device is visible there: check the driver and CUDA_VISIBLE_DEVICES, or take"
    with pytest.raises(PlacementError, match=message):
        place("auto", KINDS, None, [_facts("a", ["0"]), _facts("b", []), _facts("c", [])])


def test_device_that_the_backend_lacks_is_refused() -> None:
    """And what it has is named."""
    with pytest.raises(PlacementError, match="npu: this backend runs on cuda, cpu"):
        place("npu", ("cuda", "cpu"), None, [_facts("a", [])])


@pytest.mark.parametrize(("facts", "asked", "threads"), [
    ([_facts("a", [])] * 2, None, [2, 2]), ([_facts("a", [], [0, 1]), _facts("a", [], [2, 3, 4])], None, [2, 3]),
    ([_facts("a", [], [0, 1])] * 8, None, [1] * 8), ([_facts("a", [], [0, 1])] * 2, 5, [5, 5]),
    # Each rank's own OMP_NUM_THREADS, unless the option says more.
    ([_facts("a", [], [0, 1], threads=1), _facts("b", [], [0, 1])], None, [1, 2]),
    ([_facts("a", [], [0, 1], threads=1), _facts("b", [], [0, 1])], 3, [3, 3]),
])  # fmt: skip
def test_threads_are_a_share_of_the_affinity_mask(facts: list[Facts], asked: int | None, threads: list[int]) -> None:
    """Divided by the ranks that share processors; never 0."""
    assert [p.threads for p in place("cpu", KINDS, asked, facts)] == threads


def test_a_containers_quota_is_shared_too() -> None:
    """Two containers of one kernel, of 3 and 1.5 processors, and a host without a quota."""
    of_three = _facts("a", [], list(range(64)), quota=3.0)
    facts = [of_three, of_three, _facts("b", [], [0, 1], quota=1.5), _facts("c", [], [0, 1])]
    assert [p.threads for p in place("cpu", KINDS, None, facts)] == [1, 1, 1, 2]
    assert [p.threads for p in place("cpu", KINDS, None, [of_three])] == [3]
    assert [p.threads for p in place("cpu", KINDS, 5, facts)] == [5] * 4


@pytest.mark.parametrize(("masks", "taken"), [
    (["0,1", "1,0"], ["0", "1"]), (["0,1", "0"], ["1", "0"]), (["0,1,2", "0,1", "1"], ["2", "0", "1"]),
    (["0", "1"], ["0", "1"]),  # a launcher has given each rank one
])  # fmt: skip
def test_masks_of_each_ranks_own(masks: list[str], taken: list[str]) -> None:
    """Two ranks never take one device, in whatever order their masks name them."""
    facts = [_facts("a", mask.split(",")) for mask in masks]
    placements = place("cuda", KINDS, None, facts)
    assert [fact["devices"]["cuda"][p.index] for fact, p in zip(facts, placements, strict=True)] == taken
