"""How ranks take their devices and meet, by the signatures of the real functions: no device is here."""

import inspect
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import mindspore as ms
import mindspore.communication
import mindspore.mint.distributed
import pytest
import torch
from torch import distributed

from unilaunch.errors import PlacementError
from unilaunch.interfaces.backend import Peers, Placement, Rendezvous, TensorCollectives
from unilaunch.interfaces.world import World
from unilaunch.rank.current import Member
from unilaunch_graph.torch import loading
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_mindspore.joining import join_through_store
from unilaunch_torch.backend import TorchBackend

WORLD = World(rank=1, size=4, local_rank=1, local_size=2, node_rank=0, num_hosts=2, host="a", launcher="Open MPI 5")
MEETING = Rendezvous("10.0.0.1", 4321, "eth1")
MINUTE = timedelta(seconds=60)


def tcp_store(
    host_name: str, port: int, world_size: int | None = None, is_master: bool = False,  # noqa: FBT001, FBT002
    timeout: timedelta = MINUTE, wait_for_workers: bool = True, multi_tenant: bool = False,  # noqa: FBT001, FBT002
    master_listen_fd: int | None = None, use_libuv: bool = True,  # noqa: FBT001, FBT002
) -> Any:  # fmt: skip
    """Take what torch.distributed.TCPStore takes, which is C++ and has no signature that Python can read."""


class Calls(dict[str, dict[str, Any]]):
    """Replaces functions by others with their signatures, and keeps by name what they were called with, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def replace(self, owner: Any, name: str, answer: Any = None, real: Callable[..., Any] | None = None) -> None:
        """Replace *owner*.*name*; *real* stands in for a function without a signature."""
        signature = inspect.signature(real or getattr(owner, name))

        def note(*args: Any, **kwargs: Any) -> Any:
            self[f"{owner.__name__}.{name}"] = dict(signature.bind(*args, **kwargs).arguments)
            return answer

        self.monkeypatch.setattr(owner, name, note, raising=False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record what would reach a device or another rank; torch sees a GPU, and torch_npu is there."""
    calls = Calls(monkeypatch)
    calls.replace(torch.cuda, "is_available", answer=True)
    calls.replace(torch.cuda, "device_count", answer=2)
    calls.replace(torch, "set_num_threads", real=lambda number, /: number)  # C++, too
    calls.replace(distributed, "TCPStore", answer="the store", real=tcp_store)
    torch_npu, npu = ModuleType("torch_npu"), ModuleType("torch_npu.npu")
    monkeypatch.setattr(torch_npu, "npu", npu, raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    calls.replace(npu, "set_device", real=lambda device: device)  # torch_npu/npu/utils.py of Ascend/pytorch
    for owner, name in (
        (torch.cuda, "set_device"), (distributed, "init_process_group"), (ms, "set_device"),
        (ms.device_context.cpu.op_tuning, "threads_num"), (ms.runtime, "launch_blocking"),
        (mindspore.communication, "init"), (mindspore.mint.distributed, "init_process_group"),
    ):  # fmt: skip
        calls.replace(owner, name)
    return calls


CUDA, NPU, STORE = "torch.cuda.set_device", "torch_npu.npu.set_device", "torch.distributed.TCPStore"
INIT, MINT = "torch.distributed.init_process_group", "mindspore.mint.distributed.init_process_group"
RANK: dict[str, Any] = {"rank": 1, "world_size": 4}
CLIENT = {"host_name": "10.0.0.1", "port": 4321, "is_master": False}
ASCEND, GPU = ({"device_target": target, "device_id": 1} for target in ("Ascend", "GPU"))
TCP = {"backend": "hccl", "init_method": "tcp://10.0.0.1:4321", "timeout": MINUTE}


@pytest.mark.parametrize(("backend", "device", "expected"), [
    (TorchBackend, "cuda", {CUDA: {"device": 1}, STORE: CLIENT, INIT: {"backend": "nccl", **RANK}}),
    (TorchBackend, "npu", {NPU: {"device": 1}, STORE: CLIENT, INIT: {"backend": "hccl", **RANK}}),
    (MindSporeBackend, "npu", {"mindspore.set_device": ASCEND, MINT: {**TCP, **RANK}}),
    (MindSporeBackend, "cuda", {"mindspore.set_device": GPU, "mindspore.communication.init": {"backend_name": "nccl"}}),
])  # fmt: skip
def test_a_rank_takes_its_device_then_its_place_among_the_ranks(
    backend: Any, device: str, expected: dict[str, dict[str, Any]], calls: Calls
) -> None:
    """By its index: without it each rank would take device 0. No port is bound: rank 1 is a client of the store."""
    rank = backend()
    rank.start(WORLD, Placement(device, 1, 2))
    rank.connect(WORLD, Placement(device, 1, 2), MEETING, MINUTE.total_seconds())
    assert [name for name in calls if name in expected] == list(expected)
    for name, arguments in expected.items():
        assert calls[name].items() >= arguments.items()


def test_the_port_that_was_agreed_on_is_held_or_free_for_the_store(calls: Calls) -> None:
    """Rank 0 hands its listening socket to torch. MindSpore accepts none, so ours is closed before its own listens."""
    first = World(rank=0, size=4, local_rank=0, local_size=2, node_rank=0, num_hosts=2, host="a", launcher="")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        TorchBackend().connect(first, Placement("cuda", 0, 1), Rendezvous("a", 1, "lo", listener), 60)
        assert calls[STORE]["is_master"]
        with socket.socket(fileno=calls[STORE]["master_listen_fd"]) as handed:
            assert handed.getsockname() == listener.getsockname()
        MindSporeBackend().connect(WORLD, Placement("npu", 1, 1), Rendezvous("127.0.0.1", port, "lo", listener), 60.0)
        with socket.create_server(("127.0.0.1", port)):
            assert calls[MINT]["init_method"] == f"tcp://127.0.0.1:{port}"


@pytest.mark.parametrize("by", ["unilaunch", "torchrun", "the script", "mpirun"])
def test_a_part_on_a_gpu_takes_the_group_that_there_is(by: str, calls: Calls) -> None:
    """The launcher's variables, or the script's own group; under mpirun torch has no address: the ranks make one."""
    calls.replace(loading, "meet", answer=MEETING)
    calls.replace(distributed, "is_torchelastic_launched", answer=by == "torchrun")
    calls.replace(distributed, "is_initialized", answer=by == "the script")
    member: Any = create_autospec(
        Member, instance=True, world=WORLD, placement=Placement("cuda", 1, 2), supervised=by == "unilaunch",
        peers=create_autospec(Peers, instance=True), environ={},
    )  # fmt: skip
    assert isinstance(loading._collectives(member), TensorCollectives)
    assert calls[CUDA] == {"device": 1}
    assert ("unilaunch_graph.torch.loading.meet" in calls) == (STORE in calls) == (by == "mpirun")
    met = {"store": "the store", "device_id": torch.device("cuda:1"), **RANK} if by == "mpirun" else {}
    assert calls.get(INIT) == (None if by == "the script" else {"backend": "nccl", **met})


@pytest.mark.parametrize(("fixture", "device", "words"), [
    ("tmp_path", Placement("cuda", 0, 1), "device cuda:0: .*sees no GPU"),
    ("tmp_path", Placement("npu", 0, 1), "--device npu: .*install torch_npu"),
    # Of GPUs in MIG mode CUDA shows one instance, though there are eight device files.
    ("calls", Placement("cuda", 7, 1), r"device cuda:7: CUDA shows 2 device\(s\) here: .*CUDA_VISIBLE_DEVICES"),
])  # fmt: skip
def test_a_device_that_is_not_there_is_refused(
    fixture: str, device: Placement, words: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(fixture)
    with pytest.raises(PlacementError, match=f"rank 1 on a: {words}"):
        TorchBackend().start(WORLD, device)


def test_mindspores_backend_of_another_device_is_refused_before_the_ranks_meet() -> None:
    """The default of `mint.distributed.init_process_group`: a script that went on to `init()` hung."""
    nobody: Any = None
    world: Any = SimpleNamespace(launcher="none", rank=0, size=2)
    with pytest.raises(RuntimeError, match=r"^MindSpore's backend on CPU is 'mccl', not 'hccl': call init\(\)$"):
        join_through_store(nobody, nobody, world, nobody)("hccl")
