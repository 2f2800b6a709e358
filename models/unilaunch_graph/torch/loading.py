"""`load`: from a data set's name to this rank's part, on the device that this rank was given."""

import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
import torch.distributed as dist

from unilaunch.interfaces.backend import Collectives, TensorCollectives
from unilaunch.rank.current import Member, add_remedy
from unilaunch.rendezvous.rendezvous import meet
from unilaunch.spec.run_spec import RunSpec
from unilaunch_graph.loading import load_part
from unilaunch_graph.partition.part import Part
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks
from unilaunch_torch.backend import COMMUNICATION, TorchBackend, take_gpu

#: Where `torch.load` is.
_SERIALIZATION = torch.load.__module__


def load(
    name: str | Path, *, device: str = "auto", dtype: torch.dtype | None = None, **options: Any
) -> GraphPart:  # fmt: skip
    """Return this rank's part of a graph, as tensors. All ranks must call this.

    Works in a script that any launcher has started: `unilaunch launch`, mpirun, torchrun, srun, or none (one rank);
    and in processes that have met by `init_process_group` before (`mp.spawn`, Ray): they are the ranks.
    On CPU the ranks exchange rows over MPI where the launcher has wired MPI up, else over sockets; MPI is initialised
    here unless the script has done so. On CUDA they use torch.distributed's default group, with NCCL, which is
    initialised here unless the script has done so. On CUDA this was never run.

    Args:
        name: A data set's name ("cora"), or the path of a graph file or folder.
        device: "auto", "cpu" or "cuda"; under unilaunch its `--device` decides, and this is not looked at.
        dtype: Of x, edge_weight, floating edge_attr and regression labels; None: `torch.get_default_dtype()`.
        **options: Fields of `unilaunch_graph.spec.DataSpec`: `data_dir`, `partition_dir`, `balance`, ...

    Raises:
        SpecError: An option is unknown or has a value that is not allowed; *dtype* is no type of floats.
        PlacementError: This rank has no device of that kind.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    return make_part(*load_arrays(name, device, options), dtype, keeps_rows=False)


def load_arrays(name: str | Path, device: str, options: Mapping[str, Any]) -> tuple[Part, Ranks]:
    """Return this rank's part as mapped arrays, and the ranks. All ranks must call this; as `load`."""
    part, member = load_part(name, device, options)
    return part, Ranks.once(lambda: _ranks(member))


def _ranks(member: Member) -> Ranks:
    world = member.world
    if world.size > 1:
        add_remedy(lambda error: remedy_of(error, world.rank))
    return Ranks(world.rank, world.size, _collectives(member), torch.device(world.device))


def remedy_of(error: BaseException, rank: int) -> str:
    """Return what to do about the error that ends a rank: one line; "" where that is not known."""
    if rank > 0 and _lacks_file(error):
        return (
            f"rank {rank} has read a file that is missing or not complete: if rank 0 writes it, all ranks call "
            "ug.torch.barrier(part) between both"
        )
    if _assigns_to_part(error):
        return (
            "a part stays as it was loaded: give the model other rows, x = ..., or write to the part's own in place, "
            "part.x.copy_(...)"
        )
    if "torch_geometric" not in sys.modules:
        return ""
    from unilaunch_graph.torch.watching import remedy_of as remedy_of_layer

    return remedy_of_layer(error)


def _assigns_to_part(error: BaseException) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, FrozenInstanceError) and isinstance(frames[-1].f_locals.get("self"), GraphPart)


def _lacks_file(error: BaseException) -> bool:
    """Return whether `torch.load` did not find its file, or not the file's end; other errors are of the content."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_globals.get("__name__") == _SERIALIZATION]
    names = [frame.f_code.co_name for frame in frames]
    return "load" in names and (isinstance(error, EOFError) or names[-1] == "__init__")  # of what opens the file


def _collectives(member: Member) -> Collectives:
    if member.placement.device == "cpu":
        if not member.supervised and "OMP_NUM_THREADS" not in member.environ:
            torch.set_num_threads(member.placement.threads)
        return member.collectives()
    if member.placement.device == "cuda":
        take_gpu(member.world, member.placement)
    else:
        torch.get_device_module(member.placement.device).set_device(member.placement.index)
    return _device_collectives(member)


def _device_collectives(member: Member) -> Collectives:
    """Return the default group's collectives; the group is made if the script has not made it.

    Never run on a GPU: the calls are tested as recorded calls (tests/backends/test_devices.py).
    """
    if member.world.size == 1:
        return member.peers.collectives()
    if not dist.is_initialized():
        if not (member.supervised or dist.is_torchelastic_launched()):
            spec = RunSpec()
            rendezvous = meet(member.peers, member.world, spec)
            return TorchBackend().connect(member.world, member.placement, rendezvous, spec.timeout)
        dist.init_process_group(COMMUNICATION[member.placement.device])  # their launchers tell it where rank 0 is
    return TensorCollectives(dist)
