"""Devices and threads, from what all ranks see; the environment that each framework finds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import EnvironmentMismatchError, PlacementError
from unilaunch.interfaces.backend import Backend, Placement, Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.launchers import set_by_launchers
from unilaunch.machine.devices import absent_devices, visible_devices
from unilaunch.rank.framework_env import exported_threads, framework_env
from unilaunch.rank.placement import Facts, place
from unilaunch.record import replace
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_torch.backend import TorchBackend

KINDS = ("cuda", "npu", "cpu")
MASKS = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


def _facts(
    host: str, cuda: str = "", cores: int = 4, first: int = 0, npu: Sequence[str] = (), quota: float | None = None,
    threads: int | None = None,
) -> Facts:  # fmt: skip
    devices = {"cuda": cuda.split(), "npu": list(npu)}
    return Facts(
        name=host, host=f"{host} boot", folder="/", cores=(1 << cores) - 1 << first, quota=quota, threads=threads,
        devices=devices, monitor="", start="", placeholders={},
    )  # fmt: skip


@pytest.mark.parametrize(("mask", "files", "expected"), [
    (None, "", []), (None, "nvidia0 nvidia1 nvidiactl", ["0", "1"]),
    ("2,3", "nvidia0 nvidia1 nvidia2 nvidia3", ["2", "3"]), ("2,3", "", []),
    ("0,1", "dxg", ["0", "1"]),  # one file for all, on Windows
    ("0,1,2,3", "nvidia0 nvidia1", ["0", "1"]),  # more than there are
    ("none", "nvidia0", []), ("", "nvidia0", []), ("0,-1,1", "nvidia0 nvidia1", ["0"]), ("0,0", "nvidia0 nvidia1", []),
    ("GPU-8f2, GPU-1a", "nvidia0 nvidia1", ["GPU-8f2", "GPU-1a"]), ("GPU-8f2", "", []),
    ("MIG-8f2, MIG-1a", "nvidia0", ["MIG-8f2"]), (" 0, 1 ", "nvidia0 nvidia1", ["0", "1"]),
])  # fmt: skip
def test_visible_devices(mask: str | None, files: str, expected: list[str], tmp_path: Path) -> None:
    for name in (*files.split(), "davinci0"):
        (tmp_path / name).touch()
    assert visible_devices({} if mask is None else {MASKS[0]: mask}, tmp_path) == {"cuda": expected, "npu": ["0"]}
    assert visible_devices({MASKS[1]: "4,5"}, tmp_path)["npu"] == ["4", "5"]  # Ascend's have a variable of their own


@pytest.mark.parametrize(("value", "files", "expected"), [
    ("0", [], ["0"]), ("GPU-8f2", [], ["GPU-8f2"]), ("0,5", ["nvidia0"], ["5"]), ("0", ["nvidia0"], []), ("-1", [], []),
])  # fmt: skip
def test_absent_devices_are_named(value: str, files: list[str], expected: list[str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    lines = absent_devices({MASKS[0]: value}, tmp_path)
    assert [line.partition(": ")[2].partition(" is not there")[0] for line in lines] == expected


@pytest.mark.parametrize("variable", MASKS)
def test_devices_without_commas_are_refused(variable: str, tmp_path: Path) -> None:
    """The job would run on one of them, or on the CPU."""
    with pytest.raises(EnvironmentMismatchError, match=f"{variable}='0 1': put commas between the devices: 0,1"):
        visible_devices({variable: "0 1"}, tmp_path)


@pytest.mark.parametrize("environ", [{MASKS[0]: "0"}, {}])
def test_a_device_is_named_by_its_file_where_others_are_denied(environ: dict[str, str], tmp_path: Path) -> None:
    """Srun --gpus-per-task=1: each task has CUDA_VISIBLE_DEVICES=0, and its cgroup makes that another device."""
    (tmp_path / "nvidia1").touch()
    for denied in ("nvidia0", "nvidia2"):
        (tmp_path / denied).symlink_to("nowhere")  # root may open every file that is there
    assert visible_devices(environ, tmp_path)["cuda"] == ["1"]


@pytest.mark.parametrize(("device", "facts", "expected"), [
    ("cuda", [_facts("a", "0 1"), _facts("b", "0"), _facts("a", "0 1")], "cuda:0 cuda:0 cuda:1"),  # round-robin
    # Masks of each rank's own: two ranks never take one device, in whatever order their masks name them.
    ("cuda", [_facts("a", "0 1"), _facts("a", "1 0")], "cuda:0 cuda:0"),
    ("cuda", [_facts("a", "0 1"), _facts("a", "0")], "cuda:1 cuda:0"),
    ("cuda", [_facts("a", "0 1 2"), _facts("a", "0 1"), _facts("a", "1")], "cuda:2 cuda:0 cuda:0"),
    ("cuda", [_facts("a", "0"), _facts("a", "1")], "cuda:0 cuda:0"),  # a launcher has given each rank one
    # Never one rank on a GPU and another on the processor.
    ("auto", [_facts("a", "0"), _facts("b", "0")], "cuda:0 cuda:0"),
    ("auto", [_facts("a", "0", npu=["0"]), _facts("b", npu=["0"])], "npu:0 npu:0"),
    ("auto", [_facts("a")], "cpu"),
])  # fmt: skip
def test_the_devices_of_ranks(device: str, facts: list[Facts], expected: str) -> None:
    """Each takes that of its local rank; of "auto", what every rank has."""
    assert " ".join(map(str, place(device, KINDS, None, facts))) == expected


@pytest.mark.parametrize(("device", "facts", "words"), [
    ("cuda", [_facts("a", "0"), _facts("a", "0")], "2 ranks on this host see 1"),
    ("cuda", [_facts("a", "MIG-1"), _facts("a", "MIG-1")], "NCCL connects no ranks that share a GPU: start at"),
    ("cuda", [_facts("a", "0 1"), _facts("b")], "rank 1 on b: no cuda device is visible"),
    # The whole job would train on the CPU and say nothing.
    ("auto", [_facts("a", "0"), _facts("b"), _facts("c")], "^rank 1 on b: no cuda device is visible there"),
    ("gpu", [_facts("a")], "gpu: this backend runs on cuda, npu, cpu"),
])  # fmt: skip
def test_what_no_device_can_be_had_for_is_refused(device: str, facts: list[Facts], words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        place(device, KINDS, None, facts)


OF_THREE = _facts("a", cores=64, quota=3.0)
OF_HOSTS = [OF_THREE, OF_THREE, _facts("b", cores=2, quota=1.5), _facts("c", cores=2)]


@pytest.mark.parametrize(("facts", "asked", "threads"), [
    ([_facts("a")] * 2, None, [2, 2]), ([_facts("a", cores=2), _facts("a", cores=3, first=2)], None, [2, 3]),
    ([_facts("a", cores=2)] * 8, None, [1] * 8), ([_facts("a", cores=2)] * 2, 5, [5, 5]),
    # Each rank's own OMP_NUM_THREADS, unless the option says more.
    ([_facts("a", cores=2, threads=1), _facts("b", cores=2)], None, [1, 2]),
    ([_facts("a", cores=2, threads=1), _facts("b", cores=2)], 3, [3, 3]),
    # Two containers of one kernel, of 3 and 1.5 processors, and a host without a quota.
    ([OF_THREE], None, [3]), (OF_HOSTS, None, [1, 1, 1, 2]), (OF_HOSTS, 5, [5] * 4),
])  # fmt: skip
def test_threads_of_ranks(facts: list[Facts], asked: int | None, threads: list[int]) -> None:
    """A share of the affinity mask and of the container's quota, for the ranks that share processors; never 0."""
    assert [one.threads for one in place("cpu", KINDS, asked, facts)] == threads


WORLD = World(rank=3, size=4, local_rank=1, local_size=2, node_rank=1, num_hosts=2, host="b", launcher="Open MPI 5")
CPU, MEETING = Placement("cpu", 0, 2), Rendezvous("10.0.0.1", 4321, "eth1")
THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
RANK = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCH = RANK | {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
MET = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4321"}
MINDSPORE = {"RANK_ID": "3", "RANK_SIZE": "4", "GLOG_v": "3"}
HCCL = {"HCCL_SOCKET_IFNAME": "=eth1", "HCCL_WHITELIST_DISABLE": "1"}


@pytest.mark.parametrize(("backend", "device", "expected"), [
    (TorchBackend(), "cpu", TORCH),
    (TorchBackend(), "cuda", TORCH | MET | {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}),
    (TorchBackend(), "npu", TORCH | MET | HCCL | {"GLOO_SOCKET_IFNAME": "eth1"}),
    (MindSporeBackend(), "cpu", MINDSPORE | {"DEVICE_ID": "0"}),
    (MindSporeBackend(), "npu", MINDSPORE | MET | HCCL | {"DEVICE_ID": "1"}),
])  # fmt: skip
def test_variables_of_each_framework_and_device(backend: Backend, device: str, expected: dict[str, str]) -> None:
    placement, rendezvous = (CPU, None) if device == "cpu" else (Placement(device, 1, 2), MEETING)
    assert framework_env([backend], WORLD, placement, rendezvous, {}) == THREADS | expected


@pytest.mark.parametrize("exported", [{}, {"RANK": "9", "LOCAL_RANK": "9"}])
def test_a_program_without_a_framework_finds_its_rank(exported: dict[str, str]) -> None:
    """Whatever another launcher has left in the shell."""
    assert framework_env([], WORLD, CPU, MEETING, exported, program=True) == THREADS | MET | RANK


ELSEWHERE = {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "29500"}
OF_TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(("launcher", "exported", "options", "expected"), [
    ("Open MPI 5", {"OMP_NUM_THREADS": "7"} | ELSEWHERE, {}, {"OMP_NUM_THREADS": None} | dict.fromkeys(MET)),
    # In torch MKL's variable wins: with the rank's share in it, what the user exported had no effect.
    ("Open MPI 5", {"OMP_NUM_THREADS": "4,2"}, {}, {"MKL_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"}),
    ("Open MPI 5", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "7"}, {"threads": 2}, THREADS),
    ("torchrun", OF_TORCHRUN, {}, {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": "1"}),
    # Rank 0 listens at the port of the option; a script that found the exported one met other ranks, or none.
    ("Open MPI 5", ELSEWHERE, {"master": ("a", 4321)}, MET),
    ("Open MPI 5", ELSEWHERE, {"master": (None, 4321)}, {"MASTER_ADDR": None, "MASTER_PORT": "4321"}),
    ("torchrun", ELSEWHERE | OF_TORCHRUN, {"master": ("a", 4321)}, dict.fromkeys(MET)),  # its agents serve the store
    # A rank of torchrun keeps RANK; MindSpore's RANK_ID in the shell is not this rank's.
    ("torchrun", {"RANK": "3", "RANK_ID": "0", "RANK_SIZE": "1"}, {}, {"RANK": None, "RANK_ID": "3", "RANK_SIZE": "4"}),
], ids=str)  # fmt: skip
def test_options_win_over_exports(launcher: str, exported: dict[str, str], options: Any, expected: Any) -> None:
    """And that over the rank's share. What is exported is left as it is: None, it is not even mentioned."""
    backends, world = [TorchBackend(), MindSporeBackend()], replace(WORLD, launcher=launcher)
    chosen = framework_env(backends, world, CPU, MEETING, exported, **options)
    assert {name: chosen.get(name) for name in expected} == expected


@pytest.mark.parametrize(("exported", "threads"), [
    (OF_TORCHRUN, None), (OF_TORCHRUN | {"OMP_NUM_THREADS": "3"}, 3), (OF_TORCHRUN | {"LOCAL_WORLD_SIZE": "1"}, 1),
    ({"OMP_NUM_THREADS": "1"}, 1),
])  # fmt: skip
def test_the_threads_of_torchrun_are_not_the_users(exported: dict[str, str], threads: int | None) -> None:
    """It exports 1 for several ranks of a host: a model has its share then."""
    assert exported_threads(exported, set_by_launchers(exported)) == threads
