"""Calls to devices that this machine does not have: each must fit the signature of the framework's real function."""

import inspect
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any
from unittest.mock import create_autospec

import mindspore as ms
import mindspore.communication
import mindspore.mint.distributed
import pytest
import torch
import torch.distributed

from unilaunch.errors import PlacementError
from unilaunch.interfaces.backend import Peers, Placement, Rendezvous, TensorCollectives
from unilaunch.interfaces.world import World
from unilaunch.rank.current import Member
from unilaunch_graph.torch import loading
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_torch.backend import TorchBackend

WORLD = World(rank=1, size=4, local_rank=1, local_size=2, node_rank=0, num_hosts=2, host="a", launcher="Open MPI 5")
MEETING = Rendezvous("10.0.0.1", 4321, "eth1")
MINUTE = timedelta(seconds=60)

Call = tuple[str, dict[str, Any]]


# Signatures written by hand. The first two functions are C++ and have no signature that Python can read; their
# docstrings say what they take. The third is not installed: torch_npu/npu/utils.py of github.com/Ascend/pytorch has it.


def tcp_store(
    host_name: str, port: int, world_size: int | None = None, is_master: bool = False,  # noqa: FBT001, FBT002
    timeout: timedelta = MINUTE, wait_for_workers: bool = True, multi_tenant: bool = False,  # noqa: FBT001, FBT002
    master_listen_fd: int | None = None, use_libuv: bool = True,  # noqa: FBT001, FBT002
) -> Any:  # fmt: skip
    """Take what torch.distributed.TCPStore takes."""


def set_num_threads(number: int, /) -> None:
    """Take what torch.set_num_threads takes."""


def set_npu_device(device: Any) -> None:
    """Take what torch_npu.npu.set_device takes."""


class Calls:
    """Replaces functions by autospecs of them, and keeps what they were called with, in the order of the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.made: list[Call] = []

    def replace(self, owner: Any, name: str, answer: Any = None, real: Callable[..., Any] | None = None) -> None:
        """Replace *owner*.*name*; *real* stands in for a function without a signature."""
        real = real or getattr(owner, name)
        signature, dotted = inspect.signature(real), f"{owner.__name__}.{name}"

        def note(*args: Any, **kwargs: Any) -> Any:
            self.made.append((dotted, dict(signature.bind(*args, **kwargs).arguments)))
            return answer

        self.monkeypatch.setattr(owner, name, create_autospec(real, side_effect=note), raising=False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record what would reach a device or another rank; torch sees a GPU, and torch_npu is there."""
    calls = Calls(monkeypatch)
    calls.replace(torch.cuda, "is_available", answer=True)
    calls.replace(torch.cuda, "device_count", answer=2)
    calls.replace(torch, "set_num_threads", real=set_num_threads)
    calls.replace(torch.distributed, "TCPStore", answer="the store", real=tcp_store)
    torch_npu, npu = ModuleType("torch_npu"), ModuleType("torch_npu.npu")
    monkeypatch.setattr(torch_npu, "npu", npu, raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    calls.replace(npu, "set_device", real=set_npu_device)
    for owner, name in (
        (torch.cuda, "set_device"), (torch.distributed, "init_process_group"), (ms, "set_device"),
        (ms.device_context.cpu.op_tuning, "threads_num"), (ms.runtime, "launch_blocking"),
        (mindspore.communication, "init"), (mindspore.mint.distributed, "init_process_group"),
    ):  # fmt: skip
        calls.replace(owner, name)
    return calls


def _connect(backend: TorchBackend | MindSporeBackend, device: str) -> None:
    placement = Placement(device, 1, 2)
    backend.start(WORLD, placement)
    backend.connect(WORLD, placement, MEETING, MINUTE.total_seconds())


_INIT = "torch.distributed.init_process_group"
_MINT = "mindspore.mint.distributed.init_process_group"
DEVICES: dict[str, tuple[Any, list[Call]]] = {
    "cuda": (TorchBackend, [("torch.cuda.set_device", {"device": 1}), (_INIT, {"backend": "nccl"})]),
    "npu": (TorchBackend, [("torch_npu.npu.set_device", {"device": 1}), (_INIT, {"backend": "hccl"})]),
    "Ascend": (MindSporeBackend, [
        ("mindspore.set_device", {"device_target": "Ascend", "device_id": 1}),
        (_MINT, {"backend": "hccl", "init_method": "tcp://10.0.0.1:4321", "timeout": MINUTE}),
    ]),
    "GPU": (MindSporeBackend, [
        ("mindspore.set_device", {"device_target": "GPU", "device_id": 1}),
        ("mindspore.communication.init", {"backend_name": "nccl"}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_a_rank_takes_its_device_then_its_place_among_the_ranks(device: str, calls: Calls) -> None:
    """By its index: without it each rank would take device 0. No port is bound: rank 1 is a client of the store."""
    backend, expected = DEVICES[device]
    _connect(backend(), {"Ascend": "npu", "GPU": "cuda"}.get(device, device))
    assert [name for name, _ in calls.made if name in dict(expected)] == [name for name, _ in expected]
    made = dict(calls.made)
    for name, arguments in expected:
        assert made[name].items() >= arguments.items()
    for name in {_INIT, _MINT} & set(made):
        assert (made[name]["rank"], made[name]["world_size"]) == (1, 4)
    if store := made.get("torch.distributed.TCPStore"):
        assert (store["host_name"], store["port"], store["is_master"]) == ("10.0.0.1", 4321, False)


def test_rank_0_hands_its_listening_socket_over(calls: Calls) -> None:
    """The port that was agreed on is never free in between."""
    first = World(rank=0, size=4, local_rank=0, local_size=2, node_rank=0, num_hosts=2, host="a", launcher="")
    with socket.create_server(("", 0)) as listener:
        TorchBackend().connect(first, Placement("cuda", 0, 1), Rendezvous("a", 1, "lo", listener), 60)
        (store,) = [arguments for name, arguments in calls.made if name == "torch.distributed.TCPStore"]
        assert store["is_master"]
        with socket.socket(fileno=store["master_listen_fd"]) as handed:
            assert handed.getsockname() == listener.getsockname()


def test_mindspores_store_may_bind_the_port_that_rank_0_held(calls: Calls) -> None:
    """It accepts no socket, so ours is closed before it is started."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        meeting = Rendezvous("127.0.0.1", port, "lo", listener)
        MindSporeBackend().connect(WORLD, Placement("npu", 1, 1), meeting, 60.0)
        with socket.create_server(("127.0.0.1", port)):
            assert calls.made[0][1]["init_method"] == f"tcp://127.0.0.1:{port}"


@pytest.mark.usefixtures("calls")
def test_a_gpu_that_cuda_does_not_count_is_refused() -> None:
    """Of GPUs in MIG mode CUDA shows one instance, though there are eight device files."""
    words = r"rank 1 on a: device cuda:7: CUDA shows 2 device\(s\) here: .*CUDA_VISIBLE_DEVICES, or take the device cpu"
    placement = Placement("cuda", 7, 1)
    with pytest.raises(PlacementError, match=words):
        TorchBackend().start(WORLD, placement)
    with pytest.raises(PlacementError, match=words):  # a script without unilaunch
        loading._collectives(create_autospec(Member, instance=True, world=WORLD, placement=placement))


@pytest.mark.parametrize("by", ["unilaunch", "torchrun", "the script", "mpirun"])
def test_a_part_on_a_gpu_takes_the_group_that_there_is(by: str, calls: Calls) -> None:
    """The launcher's variables, or the script's own group; under mpirun torch has no address: the ranks make one."""
    calls.replace(loading, "meet", answer=MEETING)
    calls.replace(torch.distributed, "is_torchelastic_launched", answer=by == "torchrun")
    calls.replace(torch.distributed, "is_initialized", answer=by == "the script")
    member: Any = create_autospec(
        Member, instance=True, world=WORLD, placement=Placement("cuda", 1, 2), supervised=by == "unilaunch",
        peers=create_autospec(Peers, instance=True), environ={},
    )  # fmt: skip
    assert isinstance(loading._collectives(member), TensorCollectives)
    made = dict(calls.made)
    assert made["torch.cuda.set_device"] == {"device": 1}
    assert ("unilaunch_graph.torch.loading.meet" in made) == ("torch.distributed.TCPStore" in made) == (by == "mpirun")
    group: dict[str, Any] = {"backend": "nccl"}
    if by == "mpirun":
        group |= {"store": "the store", "rank": 1, "world_size": 4, "device_id": torch.device("cuda:1")}
    assert made.get(_INIT) == (None if by == "the script" else group)


@pytest.mark.parametrize(("device", "words"), [("cuda", "sees no GPU"), ("npu", "install torch_npu")])
def test_a_device_that_torch_has_not_is_refused(device: str, words: str) -> None:
    """The real torch of this machine, in one line with rank and host."""
    with pytest.raises(PlacementError, match=rf"rank 1 on a: (--device npu|device cuda:0): .*{words}"):
        TorchBackend().start(WORLD, Placement(device, 0, 1))
