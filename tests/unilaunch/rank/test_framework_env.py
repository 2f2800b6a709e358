"""The environment that each framework finds."""

import pytest
from typing_extensions import override

from unilaunch.interfaces.backend import Backend, Placement, Rendezvous
from unilaunch.interfaces.world import World
from unilaunch.launchers import set_by_launchers
from unilaunch.rank.framework_env import exported_threads, framework_env
from unilaunch.record import replace
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_torch.backend import TorchBackend

WORLD = World(rank=3, size=4, local_rank=1, local_size=2, node_rank=1, num_hosts=2, host="b", launcher="Open MPI 5")
MEETING = Rendezvous("10.0.0.1", 4321, "eth1")
THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
TORCH = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}  # fmt: skip
MET = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4321"}
MINDSPORE = {"RANK_ID": "3", "RANK_SIZE": "4", "GLOG_v": "3"}
CASES: dict[str, tuple[Backend, Placement, Rendezvous | None, dict[str, str]]] = {
    "torch on cpu": (TorchBackend(), Placement("cpu", 0, 2), None, TORCH),
    "torch on cuda": (
        TorchBackend(), Placement("cuda", 1, 2), MEETING,
        TORCH | MET | {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"},
    ),
    "torch on npu": (
        TorchBackend(), Placement("npu", 1, 2), MEETING,
        TORCH | MET | {"GLOO_SOCKET_IFNAME": "eth1", "HCCL_SOCKET_IFNAME": "=eth1", "HCCL_WHITELIST_DISABLE": "1"},
    ),
    "mindspore on cpu": (MindSporeBackend(), Placement("cpu", 0, 2), None, MINDSPORE | {"DEVICE_ID": "0"}),
    "mindspore on npu": (
        MindSporeBackend(), Placement("npu", 1, 2), MEETING,
        MINDSPORE | MET | {"DEVICE_ID": "1", "HCCL_SOCKET_IFNAME": "=eth1", "HCCL_WHITELIST_DISABLE": "1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_variables_of_each_framework_and_device(case: str) -> None:
    """All of them, and no other."""
    backend, placement, rendezvous, expected = CASES[case]
    assert framework_env([backend], WORLD, placement, rendezvous, {}) == THREADS | expected


class _Plain(TorchBackend):
    """A third party's, whose framework needs no variables."""

    @override
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        return {}


def test_a_program_without_a_framework_finds_its_rank() -> None:
    """Whatever another launcher has left in the shell."""
    identity = {name: TORCH[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    for exported in ({}, {"RANK": "9", "LOCAL_RANK": "9"}):
        chosen = framework_env([], WORLD, Placement("cpu", 0, 2), MEETING, exported, program=True)
        assert chosen == THREADS | MET | identity


def test_every_framework_finds_rank_0() -> None:
    """No backend has to set it."""
    assert framework_env([_Plain()], WORLD, Placement("cpu", 0, 2), MEETING, {}) == THREADS | MET


def test_what_the_user_exported_is_left_alone() -> None:
    """It is not even mentioned."""
    exported = {"OMP_NUM_THREADS": "7", "MASTER_ADDR": "elsewhere", "NCCL_SOCKET_IFNAME": "ib0"}
    chosen = framework_env([TorchBackend()], WORLD, Placement("cuda", 1, 2), MEETING, exported)
    assert not set(chosen) & set(exported)


@pytest.mark.parametrize(("exported", "threads"), [("1", "1"), ("4,2", "4"), ("many", "2")])
def test_exported_threads_are_those_of_every_library(exported: str, threads: str) -> None:
    """In torch MKL's variable wins: with the rank's share in it, what the user exported had no effect."""
    chosen = framework_env([TorchBackend()], WORLD, Placement("cpu", 0, 2), None, {"OMP_NUM_THREADS": exported})
    assert (chosen["MKL_NUM_THREADS"], chosen["OPENBLAS_NUM_THREADS"]) == (threads, threads)


def test_threads_as_an_option_win_over_exported_ones() -> None:
    """Options win over the environment: for every library, also one whose own variable is exported."""
    exported = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "7"}
    chosen = framework_env([TorchBackend()], WORLD, Placement("cpu", 0, 2), None, exported, threads=2)
    assert chosen.items() >= THREADS.items()


def test_the_threads_of_torchrun_are_not_the_users() -> None:
    """It exports 1 for several ranks of a host: a model has its share then, and a script what torchrun gave it."""
    several = {"TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    for exported, threads in ((several, None), (several | {"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "1"}, 1),
                              (several | {"LOCAL_WORLD_SIZE": "1"}, 1)):  # fmt: skip
        assert exported_threads(exported, set_by_launchers(exported)) == threads
    world = replace(WORLD, launcher="torchrun")
    chosen = framework_env([TorchBackend()], world, Placement("cpu", 0, 2), None, several)
    assert ("OMP_NUM_THREADS" in chosen, chosen["MKL_NUM_THREADS"]) == (False, "1")


def test_rank_0s_address_and_port_as_options_win_over_exported_ones() -> None:
    """Rank 0 listens at the port of the option; a script that found the exported one met other ranks, or none."""
    exported = {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "29500"}
    places = [(None, None), ("a", 4321), ("elsewhere", 29500), (None, 4321)]
    found = [
        framework_env([TorchBackend()], WORLD, Placement("cpu", 0, 2), MEETING, exported, master=master)
        for master in places
    ]
    assert [set(MET) & set(chosen) for chosen in found] == [set(), set(MET), set(), {"MASTER_PORT"}]
    assert found[1].items() >= MET.items()
    of_torchrun = exported | {"TORCHELASTIC_RUN_ID": "a"}  # its agents serve the store there
    world = replace(WORLD, launcher="torchrun")
    chosen = framework_env([TorchBackend()], world, Placement("cpu", 0, 2), MEETING, of_torchrun, master=("a", 4321))
    assert not set(MET) & set(chosen)


def test_the_numbers_of_another_launcher_are_replaced_beside_those_of_this_one() -> None:
    """A rank of torchrun keeps RANK; MindSpore's RANK_ID in the shell is not this rank's."""
    exported = {"RANK": "3", "RANK_ID": "0", "RANK_SIZE": "1"}
    world = replace(WORLD, launcher="torchrun")
    chosen = framework_env([TorchBackend(), MindSporeBackend()], world, Placement("cpu", 0, 2), None, exported)
    assert ("RANK" in chosen, chosen["RANK_ID"], chosen["RANK_SIZE"]) == (False, "3", "4")
