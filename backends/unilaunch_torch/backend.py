"""PyTorch: cpu; cuda with NCCL; npu with HCCL through torch_npu. Imports torch when it is started, not before."""

import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from types import ModuleType
from typing import Any

from unilaunch.errors import PlacementError, RendezvousError
from unilaunch.interfaces.backend import (
    Backend,
    Collectives,
    Group,
    Peers,
    Placement,
    Rendezvous,
    TensorCollectives,
    Waits,
)
from unilaunch.interfaces.world import World
from unilaunch.overriding import override

#: torch's name of the communication of each kind of device.
COMMUNICATION = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
#: The key of rank 0's text in the store of a group.
_TEXT = "unilaunch"


class TorchBackend(Backend):
    """PyTorch."""

    name = "torch"
    framework = "torch"
    devices = ("cuda", "npu", "cpu")
    launcher = "torchrun"
    identity = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"})
    order = 10
    install = "pip install 'unilaunch[torch]'"

    @override
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        found = {
            "RANK": str(world.rank),
            "WORLD_SIZE": str(world.size),
            "LOCAL_RANK": str(world.local_rank),
            "LOCAL_WORLD_SIZE": str(world.local_size),
            "GROUP_RANK": str(world.node_rank),
            "GROUP_WORLD_SIZE": str(world.num_hosts),
        }
        if rendezvous:
            found["GLOO_SOCKET_IFNAME"] = rendezvous.interface
            if placement.device != "cpu":  # NCCL and HCCL take a name for the beginning of names, unless = is before it
                found[f"{COMMUNICATION[placement.device].upper()}_SOCKET_IFNAME"] = f"={rendezvous.interface}"
        if placement.device == "npu":
            found["HCCL_WHITELIST_DISABLE"] = "1"
        return found

    @override
    def program_variables(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        return {
            "ROLE_NAME": "default",
            "ROLE_RANK": str(world.rank),
            "ROLE_WORLD_SIZE": str(world.size),
            "TORCHELASTIC_RUN_ID": "unilaunch",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # the program itself connects to a store of its own: see hooks
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }

    @override
    def hooks(self, rendezvous: Rendezvous, world: World, peers: Peers) -> dict[str, Callable[[ModuleType], None]]:
        """Serve the program's store, as torchrun does: in rank 0, on the socket that was bound at the rendezvous.

        So no rank finds a closed port and waits before it tries again. A program that uses another address or port
        connects there as it would without a launcher.
        """
        served: list[object] = []  # the hook keeps the reference until the program ends

        def serve(distributed: ModuleType) -> None:
            if not distributed.is_available():
                return
            if rendezvous.listener:
                served.append(
                    distributed.TCPStore(
                        rendezvous.address, rendezvous.port, is_master=True, wait_for_workers=False,
                        master_listen_fd=os.dup(rendezvous.listener.fileno()),
                    )
                )  # fmt: skip
            _find_served_store(distributed, rendezvous.port)

        return {"torch.distributed": serve}

    @override
    def wait_hooks(self, waits: Waits) -> dict[str, Callable[[ModuleType], None]]:
        from unilaunch_torch.waits import Sampling, measure_ddp, measure_waits

        sampling = Sampling()
        return {
            "torch.distributed": lambda module: measure_waits(module, waits, sampling),
            "torch.nn.parallel.distributed": lambda module: measure_ddp(module, waits, sampling),
        }

    @override
    def after_fork(self, threads: int) -> None:
        import torch

        torch.default_generator.seed()
        torch.set_num_threads(threads)

    @override
    def start(self, world: World, placement: Placement) -> None:
        import torch

        torch.set_num_threads(placement.threads)
        if placement.device == "cuda":
            take_gpu(world, placement)
        elif placement.device == "npu":
            try:
                import torch_npu
            except ImportError as error:
                raise placement.refusal(world, f"{error}: install torch_npu, or take --device cpu") from None
            try:
                torch_npu.npu.set_device(placement.index)
            except RuntimeError as error:
                raise placement.refusal(world, f"{str(error).splitlines()[0]} Or take --device cpu") from None

    @override
    def connect(self, world: World, placement: Placement, rendezvous: Rendezvous, timeout: float) -> Collectives:
        import torch
        import torch.distributed as dist

        # Rank 0 hands over the socket that it bound at the rendezvous: no other process can bind the port in between.
        listener = os.dup(rendezvous.listener.fileno()) if rendezvous.listener else None
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, and not in its __all__
            rendezvous.address,
            rendezvous.port,
            world.size,
            is_master=world.rank == 0,
            timeout=timedelta(seconds=timeout),
            master_listen_fd=listener,
        )
        dist.init_process_group(
            COMMUNICATION[placement.device],
            store=store,
            rank=world.rank,
            world_size=world.size,
            # NCCL then connects here, on this rank's device, and not in the first epoch on a device that it guesses.
            device_id=torch.device(str(placement)) if placement.device == "cuda" else None,
        )
        return TensorCollectives(dist)

    @override
    def stop(self) -> None:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    @override
    def group(self) -> Group | None:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            return None
        has_store = dist.distributed_c10d._get_default_store() is not None  # noqa: SLF001  (None with the backend "mpi")
        return Group(
            "torch.distributed", dist.get_rank(), dist.get_world_size(), _broadcast_text if has_store else None
        )

    @override
    def to_array(self, value: Any) -> tuple[Any, str] | None:
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        if value.layout != torch.strided:
            raise ValueError("a sparse tensor: send value.to_dense(), or its indices and values")
        kind = str(value.dtype).removeprefix("torch.")
        try:
            return value.numpy(force=True), kind
        except TypeError:  # numpy has no bfloat16; float32 holds it exactly
            return value.float().numpy(force=True), kind

    @override
    def to_tensor(self, array: Any, type_name: str) -> Any:
        import torch

        return torch.from_numpy(array).to(getattr(torch, type_name))

    @override
    def versions(self) -> Mapping[str, str]:
        import numpy as np
        import torch

        return {"torch": str(torch.__version__), "numpy": np.__version__}


def take_gpu(world: World, placement: Placement) -> None:
    """Make a GPU the one that this process computes on.

    Raises:
        PlacementError: CUDA does not show it here.
    """
    import torch

    where = f"rank {world.rank} on {world.host}: device cuda:{placement.index}"
    if not torch.cuda.is_available():
        raise PlacementError(
            f"{where}: torch {torch.__version__} sees no GPU: install a CUDA build of torch, check the driver, or take "
            "the device cpu"
        )
    if placement.index >= (shown := torch.cuda.device_count()):
        raise PlacementError(
            f"{where}: CUDA shows {shown} device(s) here: on GPUs in MIG mode give each rank one instance by "
            "CUDA_VISIBLE_DEVICES, or take the device cpu"
        )
    torch.cuda.set_device(placement.index)


def _broadcast_text(text: str, seconds: float) -> str:
    """Return rank 0's *text*, through the store of the default group: no device takes part, and nothing is pickled."""
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (torch has no public name for it)
    if dist.get_rank() == 0:
        store.set(_TEXT, text)
        return text
    try:
        store.wait([_TEXT], timedelta(seconds=seconds))
        return str(store.get(_TEXT).decode())
    except RuntimeError as error:
        raise RendezvousError(
            f"rank {dist.get_rank()} of torch.distributed's group did not hear from rank 0 in {seconds:g} s: every "
            f"rank must load the graph, or call unilaunch.init(): {str(error).splitlines()[0]}"
        ) from None


def _find_served_store(distributed: Any, port: int) -> None:
    """Let `init_process_group` connect to the store at *port*, on rank 0 too; it creates other stores itself.

    torch has one switch for all addresses (TORCHELASTIC_USE_AGENT_STORE), so the function that reads it is replaced.
    """
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    native = getattr(rendezvous, "_create_c10d_store", None)
    if native is None:  # for versions of torch outside of 2.8 to 2.13
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # noqa: TID251
        return

    numbers = count()

    def create(hostname: str, store_port: int, rank: int, world_size: int, timeout: timedelta, *more: Any) -> Any:
        if store_port != port:
            return native(hostname, store_port, rank, world_size, timeout, *more)
        store = distributed.TCPStore(hostname, port, world_size, is_master=False, timeout=timeout)
        return distributed.PrefixStore(str(next(numbers)), store)  # the keys of a destroyed group are still there

    rendezvous._create_c10d_store = create  # type: ignore[union-attr]  # noqa: SLF001
