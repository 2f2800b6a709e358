"""What would be initialised on devices that this machine has not: recorded calls of public functions."""

import socket
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any, cast

import pytest

from backends.recording import Recorded
from unilaunch.backend import Placement, Rendezvous
from unilaunch.errors import PlacementError
from unilaunch.world import World
from unilaunch_mindspore.backend import MindSporeBackend
from unilaunch_torch.backend import TorchBackend

WORLD = World(rank=1, size=4, local_rank=1, local_size=2, node_rank=0, num_hosts=2, host="a", launcher="Open MPI 5")
MEETING = Rendezvous("10.0.0.1", 4321, "eth1")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Both frameworks as recorders, with a GPU that torch sees."""
    recorder = Recorded(torch_cuda_is_available=True)
    names = [
        "torch", "torch.distributed", "torch_npu", "mindspore", "mindspore.communication", "mindspore.mint",
        "mindspore.mint.distributed",
    ]  # fmt: skip
    for name in names:
        module = recorder
        for step in name.split("."):
            module = getattr(module, step)
        monkeypatch.setitem(sys.modules, name, cast("ModuleType", module))
    for package in ("unilaunch_torch", "unilaunch_mindspore"):
        monkeypatch.setitem(sys.modules, f"{package}.collectives", cast("ModuleType", getattr(recorder, package)))
    return recorder


def _names(recorder: Recorded) -> list[Any]:
    return [call for call in recorder.calls if "Collectives" not in call[0]]


def test_cuda_takes_its_device_then_nccl_on_the_agreed_port(fake: Recorded) -> None:
    """No port is bound: the other ranks of the store are clients."""
    backend, placement = TorchBackend(), Placement("cuda", 1, 2)
    backend.start(WORLD, placement)
    backend.connect(WORLD, placement, MEETING, 60)
    wait = ("timeout", timedelta(seconds=60))
    assert _names(fake) == [
        ("torch.set_num_threads", 2),
        ("torch.cuda.is_available",),
        ("torch.cuda.set_device", 1),
        ("torch.distributed.TCPStore", "10.0.0.1", 4321, 4, ("is_master", False), ("master_listen_fd", None), wait),
        ("torch.distributed.init_process_group", "nccl", ("rank", 1), ("store", None), wait, ("world_size", 4)),
    ]


def test_rank_0_hands_its_listening_socket_over(fake: Recorded) -> None:
    """The port that was agreed on is never free in between."""
    first = World(rank=0, size=4, local_rank=0, local_size=2, node_rank=0, num_hosts=2, host="a", launcher="")
    with socket.create_server(("", 0)) as listener:
        TorchBackend().connect(first, Placement("cuda", 0, 1), Rendezvous("a", 1, "lo", listener), 60)
        (store,) = [dict(call[4:]) for call in fake.calls if call[0].endswith("TCPStore")]
        assert store["is_master"]
        with socket.socket(fileno=store["master_listen_fd"]) as handed:
            assert handed.getsockname() == listener.getsockname()


def test_npu_goes_through_torch_npu_and_hccl(fake: Recorded) -> None:
    """torch_npu.npu.set_device, then the group hccl."""
    backend, placement = TorchBackend(), Placement("npu", 1, 2)
    backend.start(WORLD, placement)
    backend.connect(WORLD, placement, MEETING, 60)
    called = [call[:2] for call in _names(fake)]
    assert ("torch_npu.npu.set_device", 1) in called
    assert called[-1] == ("torch.distributed.init_process_group", "hccl")


def test_ascend_is_set_by_index_before_hccl_starts(fake: Recorded) -> None:
    """Without the index MindSpore would take device 0 on every rank."""
    backend, placement = MindSporeBackend(), Placement("npu", 1, 2)
    backend.start(WORLD, placement)
    backend.connect(WORLD, placement, MEETING, 60)
    group = "mindspore.mint.distributed.init_process_group"
    wait = ("timeout", timedelta(seconds=60))
    assert _names(fake) == [
        ("mindspore.set_device", "Ascend", 1),
        (group, "hccl", ("init_method", "tcp://10.0.0.1:4321"), ("rank", 1), wait, ("world_size", 4)),
    ]


def test_mindspore_on_a_gpu_starts_nccl(fake: Recorded) -> None:
    """MindSpore's own init, which finds its ranks through Open MPI."""
    backend, placement = MindSporeBackend(), Placement("cuda", 1, 2)
    backend.start(WORLD, placement)
    backend.connect(WORLD, placement, MEETING, 60)
    assert _names(fake) == [("mindspore.set_device", "GPU", 1), ("mindspore.communication.init", "nccl")]


def test_mindspore_on_cpu_launches_in_place(fake: Recorded) -> None:
    """Each small operation handed to another thread would cost ten times as much; kernels take our threads."""
    MindSporeBackend().start(WORLD, Placement("cpu", 0, 2))
    assert _names(fake) == [
        ("mindspore.set_device", "CPU"),
        ("mindspore.device_context.cpu.op_tuning.threads_num", 2),
        ("mindspore.runtime.launch_blocking",),
    ]


@pytest.mark.parametrize(("device", "words"), [("cuda", "sees no GPU"), ("npu", "install torch_npu")])
def test_a_device_that_torch_has_not_is_refused(device: str, words: str) -> None:
    """The real torch of this machine, in one line with rank and host."""
    with pytest.raises(PlacementError, match=rf"rank 1 on a: --device {device}: .*{words}"):
        TorchBackend().start(WORLD, Placement(device, 0, 1))
