"""The environment that each framework finds."""

from typing import Any

import pytest

from unilaunch.interfaces.backend import Backend, Placement, Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.launchers import set_by_launchers
from unilaunch.rank.framework_env import exported_threads, framework_env
from unilaunch.record import replace
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_torch.backend import TorchBackend

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
    ("Open MPI 5", {"OMP_NUM_THREADS": "many"}, {}, {"MKL_NUM_THREADS": "2"}),
    ("Open MPI 5", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "7"}, {"threads": 2}, THREADS),
    ("torchrun", OF_TORCHRUN, {}, {"OMP_NUM_THREADS": None, "MKL_NUM_THREADS": "1"}),
    # Rank 0 listens at the port of the option; a script that found the exported one met other ranks, or none.
    ("Open MPI 5", ELSEWHERE, {"master": ("a", 4321)}, MET),
    ("Open MPI 5", ELSEWHERE, {"master": ("elsewhere", 29500)}, dict.fromkeys(MET)),
    ("Open MPI 5", ELSEWHERE, {"master": (None, 4321)}, {"MASTER_ADDR": None, "MASTER_PORT": "4321"}),
    ("torchrun", ELSEWHERE | OF_TORCHRUN, {"master": ("a", 4321)}, dict.fromkeys(MET)),  # its agents serve the store
    # A rank of torchrun keeps RANK; MindSpore's RANK_ID in the shell is not this rank's.
    ("torchrun", {"RANK": "3", "RANK_ID": "0", "RANK_SIZE": "1"}, {}, {"RANK": None, "RANK_ID": "3", "RANK_SIZE": "4"}),
], ids=str)  # fmt: skip
def test_options_win_over_what_is_exported(
    launcher: str, exported: dict[str, str], options: Any, expected: Any
) -> None:
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
