"""From a data set's name to this rank's part, in a script that any launcher has started."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from unilaunch.errors import SpecError
from unilaunch.rank.current import Member, join
from unilaunch.spec.run_spec import validate
from unilaunch.spec.variables import variable_of
from unilaunch_graph.data.graph_folder import as_array
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.preparation import GraphCheck, ScriptLog, ScriptSession, prepare_part
from unilaunch_graph.spec import DataSpec

#: Each has a package of its name beside this module.
_FRAMEWORKS = ("torch", "mindspore")


def load_part(name: str | Path, device: str, options: Mapping[str, Any]) -> tuple[Part, Member]:
    """Return this rank's part, and this process as one of the ranks. All ranks must call this.

    Args:
        name: The data set: a name, a file or a folder.
        device: "auto", "cpu", "cuda" or "npu", for a script that unilaunch has not started.
        options: Fields of `DataSpec`; *owner* may be an array: the rank that owns each node. (num_nodes,)

    Raises:
        SpecError: An option is unknown or has a value that is not allowed.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    member = join(device)
    names = {field: variable_of(field, member.environ) for field in ("data_dir", "partition_dir", "mirror")}
    defaults = {field: member.environ[name] for field, name in names.items() if name in member.environ}
    with _owner_in_file(options.get("owner"), member) as owner:
        fields = {**defaults, **options, **owner, "dataset": str(name)}
        spec = validate(DataSpec, fields, {field: field for field in fields})
        if spec.parallel != "graph":
            raise SpecError(f"parallel={spec.parallel!r}: a network of your own needs parallel='graph'")
        return part_of(member, spec, as_given=True), member


@contextmanager
def _owner_in_file(owner: Any, member: Member) -> Iterator[dict[str, Path]]:
    """Yield the option *owner* as a file, if it is an array."""
    if owner is None or isinstance(owner, str | Path):
        yield {}
        return
    array = as_array("owner", owner)
    if array.dtype.kind not in "iu":
        raise SpecError(f"owner: expected the rank of each node, whole numbers (num_nodes,), not {array.dtype}")
    with TemporaryDirectory(prefix="unilaunch-") as folder:
        path = Path(folder, "owner.npy")
        if member.world.local_rank == 0:  # the only rank of a host that may cut the graph
            np.save(path, array)
        yield {"owner": path}


def part_of(member: Member, options: DataSpec, *, as_given: bool, check: GraphCheck | None = None) -> Part:
    """Return the part of one of the ranks. All ranks must call this.

    Args:
        member: This process.
        options: Which graph, and how it is divided.
        as_given: As in `preparation.prepare`.
        check: As in `preparation.prepare_part`.

    Raises:
        UnilaunchError: The data set cannot be used.
    """
    return prepare_part(options, ScriptSession(member.world, member.peers, ScriptLog()), as_given=as_given, check=check)


def load(name: str | Path, *, framework: str | None = None, **options: Any) -> Any:
    """Return this rank's part of a graph. All ranks must call this; the partition is made if it is not there.

    Works in a script that any launcher has started: `unilaunch launch`, mpirun, torchrun, srun, or none (one rank).

    Args:
        name: A data set's name ("cora"), or the path of a graph file or folder.
        framework: "torch" or "mindspore"; None takes the one that the script has imported.
        **options: The fields of `unilaunch_graph.spec.DataSpec` (`data_dir`, `partition_dir`, `balance`, ...), and of
            torch `device` ("auto", "cpu", "cuda"). MindSpore computes on the CPU. `dtype`: the framework's type of
            floats of x, edge_weight, floating edge_attr and regression labels; its default type without it.

    Returns:
        The `GraphPart` of that framework.

    Raises:
        SpecError: The framework cannot be told, or an option is unknown or has a value that is not allowed.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    return _package(f"load({str(name)!r})", framework).load(name, **options)


def predict(
    model: Any, graph: Any, output: Path | str | None = None, *, framework: str | None = None, **options: Any
) -> Any:
    """Return what a network says of this rank's nodes: `ug.torch.predict` or `ug.mindspore.predict`.

    All ranks must call this.

    Args:
        model: The network, or a list of its layers.
        graph: This rank's part, or the name or path of a graph.
        output: The .npz file that rank 0 writes, with the arrays of `unilaunch predict`; None: none.
        framework: Beside a name: "torch" or "mindspore"; None takes the one that the script has imported.
        **options: The others of `predict` in that framework.

    Raises:
        SpecError: The framework cannot be told, from the part or from what the script has imported; or as there.
    """
    of_part = (known for known in _FRAMEWORKS if type(graph).__module__ == f"unilaunch_graph.{known}.part")
    return _package("predict", next(of_part, framework)).predict(model, graph, output, **options)


def _package(call: str, framework: str | None = None) -> Any:
    """Return the package of the framework that a script has named, or has imported."""
    imported = [known for known in _FRAMEWORKS if known in sys.modules]
    chosen = framework or (imported[0] if len(imported) == 1 else "")
    if chosen not in _FRAMEWORKS:
        seen = f"framework={framework!r}" if framework else f"{' and '.join(imported) or 'no framework'} imported"
        raise SpecError(f"{call}: {seen}: name one: framework='torch' or framework='mindspore'")
    return import_module(f"unilaunch_graph.{chosen}")
