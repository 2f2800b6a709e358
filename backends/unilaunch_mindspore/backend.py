"""MindSpore: cpu; Ascend with HCCL; GPU with NCCL where the wheel has it. Imports MindSpore when it is started."""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.metadata import version
from types import MappingProxyType, ModuleType
from typing import Any

from unilaunch.errors import PluginError
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

#: MindSpore's name of each kind of device.
TARGETS = {"cpu": "CPU", "cuda": "GPU", "npu": "Ascend"}


class MindSporeBackend(Backend):
    """MindSpore, in PyNative mode."""

    name = "mindspore"
    framework = "mindspore"
    launcher = "msrun"
    identity = frozenset({"RANK_ID", "RANK_SIZE", "MS_NODE_ID", "MS_WORKER_NUM", "MS_ROLE"})
    order = 20
    install = (
        "pip install 'unilaunch[mindspore]'"
        if sys.version_info < (3, 13)
        else "MindSpore has no wheels for Python 3.13 or later: use Python 3.11 or 3.12, or --backend torch"
    )
    import_variables = MappingProxyType({"GLOG_v": "3"})  # errors only; the others are about MindSpore's internals
    devices = ("npu", "cpu", "cuda")  # cuda is used only on request: the public wheel supports CUDA 11 only

    @override
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        found = {
            "RANK_ID": str(world.rank),
            "RANK_SIZE": str(world.size),
            "DEVICE_ID": str(placement.index),
            **self.import_variables,
        }
        if rendezvous and placement.device == "npu":
            # Without = the name would stand for all names that begin with it.
            found |= {"HCCL_SOCKET_IFNAME": f"={rendezvous.interface}", "HCCL_WHITELIST_DISABLE": "1"}
        return found

    @override
    def program_variables(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        # No role, also where one is left in the user's shell: MindSpore would be msrun's scheduler, or look for it.
        return {"MS_WORKER_NUM": str(world.size), "MS_NODE_ID": str(world.rank), "MS_ROLE": ""}

    @override
    def hooks(self, rendezvous: Rendezvous, world: World, peers: Peers) -> dict[str, Callable[[ModuleType], None]]:
        """Let `init()` join the ranks under any launcher, also on cpu, where MindSpore does not support mpirun."""

        def replace(management: ModuleType) -> None:
            from unilaunch_mindspore.joining import join_through_store

            native: Any = management.init
            joining = join_through_store(native, rendezvous, world, peers)
            management.init = joining  # type: ignore[attr-defined]
            for module in list(sys.modules.values()):  # modules that imported `init` before this hook ran
                if getattr(module, "__name__", "").startswith("mindspore.") and vars(module).get("init") is native:
                    vars(module)["init"] = joining

        return {"mindspore.communication.management": replace}

    @override
    def wait_hooks(self, waits: Waits) -> dict[str, Callable[[ModuleType], None]]:
        from unilaunch_mindspore.waits import measure_waits

        return {"mindspore.ops.operations.comm_ops": lambda module: measure_waits(module, waits)}

    @override
    def after_fork(self, threads: int) -> None:
        """Do nothing: MindSpore creates its threads and its random generators at the first operation."""

    @override
    def start(self, world: World, placement: Placement) -> None:
        if fault := self.find_fault({name: version(name) for name in ("mindspore", "numpy")}):
            raise PluginError(fault)
        import mindspore as ms

        if placement.device == "cpu":
            try:
                ms.set_device("CPU")
            except RuntimeError:  # after the first operation of a script
                if (target := ms.get_context("device_target")) != "CPU":
                    reason = f"the script has begun to compute on {target}: load the graph before the first operation"
                    raise placement.refusal(world, reason) from None
            ms.device_context.cpu.op_tuning.threads_num(placement.threads)  # by default one per core, up to 25
            ms.runtime.launch_blocking()  # handing each small operation to another thread costs ten times the operation
            # MindSpore takes 1 GiB of addresses at its first operation. Taken later they would lie between the arrays
            # of a model, and the largest array that was freed before would not fit there again.
            ms.ops.zeros_like(ms.Tensor(0.0, ms.float32))
        else:
            try:
                ms.set_device(TARGETS[placement.device], placement.index)
            except (RuntimeError, ValueError) as error:
                raise placement.refusal(world, f"{str(error).splitlines()[0]} Or take --device cpu") from None

    @override
    def connect(self, world: World, placement: Placement, rendezvous: Rendezvous, timeout: float) -> Collectives:
        if placement.device == "cuda":
            from mindspore.communication import init

            init("nccl")  # under Open MPI it finds its ranks through libmpi_collective
        else:
            from mindspore.mint.distributed import init_process_group

            init_process_group(
                "hccl",
                init_method=f"tcp://{rendezvous.address}:{rendezvous.close()}",
                timeout=timedelta(seconds=timeout),
                world_size=world.size,
                rank=world.rank,
            )
        from mindspore.mint import distributed

        return TensorCollectives(distributed)

    @override
    def stop(self) -> None:
        """Do nothing: MindSpore ends its communication at exit."""

    @override
    def group(self) -> Group | None:
        communication: Any = sys.modules.get("mindspore.communication")
        if communication is None or not communication.GlobalComm.INITED:
            return None
        return Group("mindspore.communication", communication.get_rank(), communication.get_group_size())

    @override
    def to_array(self, value: Any) -> tuple[Any, str] | None:
        import mindspore as ms

        if not isinstance(value, ms.Tensor):
            return None
        kind = str(value.dtype).lower()  # numpy has no bfloat16; float32 holds it exactly
        return (value.astype(ms.float32) if kind == "bfloat16" else value).asnumpy(), kind

    @override
    def to_tensor(self, array: Any, type_name: str) -> Any:
        import mindspore as ms

        return ms.Tensor(array, ms.bool_ if type_name == "bool" else getattr(ms, type_name))

    @override
    def versions(self) -> Mapping[str, str]:
        import mindspore as ms
        import numpy as np

        return {"mindspore": str(ms.__version__), "numpy": np.__version__}

    @override
    def find_fault(self, versions: Mapping[str, str]) -> str | None:
        """Find numpy 2: MindSpore is built against numpy 1, and its first product of two tensors raises SystemError."""
        numpy = versions.get("numpy", "1")
        if "mindspore" not in versions or int(numpy.partition(".")[0]) == 1:
            return None
        return f"MindSpore needs numpy below 2, and numpy {numpy} is installed: pip install 'numpy>=1.26.4,<2'"
