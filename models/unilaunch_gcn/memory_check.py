"""A run that needs more memory than a host has: refused before the graph is divided and before a framework starts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unilaunch.errors import SpecError
from unilaunch.machine.cgroups import memory_limit
from unilaunch_gcn.layers import plan_layers
from unilaunch_gcn.memory import Share, forecast_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unilaunch.interfaces.model import Session
    from unilaunch_gcn.spec import GcnSpec, TrainingSpec
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.part import Part
    from unilaunch_graph.partition.statistics import PartitionStatistics


def host_memory() -> int:
    """Return the bytes of memory that this host has, or that its cgroups allow this process, if that is less."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    total = 1024 * int(text.partition("MemTotal:")[2].split()[0])
    return min(total, memory_limit() or total)


def leaves_rows_out(options: "TrainingSpec", *, is_directed: bool) -> bool:
    """Return whether a training epoch on the host may leave out rows: see `unilaunch_gcn.pruning`."""
    return options.conv != "gat" and options.parallel != "tensor" and not is_directed


def share_of_part(options: "TrainingSpec", part: "Part") -> Share:
    """Return what a rank has; of rows that a training leaves out, those that its own edges show."""
    from unilaunch_graph.partition.reach import reached

    prunes = leaves_rows_out(options, is_directed=part.is_directed) and not part.adjacency
    flags = reached(part.split, part.owned_indptr, part.owned_indices, options.layers) if prunes else []
    return Share(
        rows=[int(own.sum()) for own in flags] or [part.num_owned] * (options.layers + 1),
        nodes=part.num_owned, halo=part.num_halo, sent=len(part.send_rows), edges=part.num_edges,
        num_features=part.num_features, entries=getattr(part.features, "nnz", None),
        is_directed=part.is_directed, has_weights=len(part.owned_weights) + len(part.halo_weights) > 0,
        num_parts=part.num_parts,
    )  # fmt: skip


def share_of_graph(options: "TrainingSpec", graph: "Graph", num_parts: int) -> Share:
    """Return what each rank has at least, before the graph is divided: an equal share, and no halo."""
    from unilaunch_graph.partition.reach import reached

    prunes = leaves_rows_out(options, is_directed=graph.is_directed)
    flags = reached(graph.split, graph.indptr, graph.indices, options.layers) if prunes else []
    entries = getattr(graph.features, "nnz", None)
    return Share(
        rows=[int(own.sum()) // num_parts for own in flags] or [graph.num_nodes // num_parts] * (options.layers + 1),
        nodes=graph.num_nodes // num_parts, halo=0, sent=0, edges=len(graph.indices) // num_parts,
        num_features=graph.num_features, entries=None if entries is None else entries // num_parts,
        is_directed=graph.is_directed, has_weights=graph.weights is not None, num_parts=num_parts,
    )  # fmt: skip


def shares_of_parts(
    statistics: "PartitionStatistics", owner: "NDArray[np.int64]", graph: "Graph", num_layers: int
) -> Iterator[Share]:
    """Yield what each rank has of a graph that has been divided.

    Args:
        statistics: The parts, counted.
        owner: The part of each node. (num_nodes,)
        graph: The graph.
        num_layers: Number of layers.
    """
    import numpy as np

    entries = None
    if not isinstance(graph.features, np.ndarray):
        entries = np.bincount(owner, weights=np.diff(graph.features.indptr), minlength=statistics.num_parts)
    rows = statistics.rows or [statistics.nodes] * (num_layers + 1)
    for part in range(statistics.num_parts):
        yield Share(
            rows=[int(own[part]) for own in rows],
            nodes=int(statistics.nodes[part]), halo=int(statistics.halo[part]),
            sent=int(statistics.traffic[part].sum()), edges=int(statistics.edges[part]),
            num_features=graph.num_features, entries=None if entries is None else int(entries[part]),
            is_directed=graph.is_directed, has_weights=graph.weights is not None,
            num_parts=statistics.num_parts,
        )  # fmt: skip


def refuse_graph(options: "GcnSpec", graph: "Graph", session: "Session") -> None:
    """Refuse a graph of which the ranks of one host need more than it has, before it is divided.

    Raises:
        SpecError: They do.
    """
    layers = plan_layers(options, graph.num_features, graph.num_classes)
    world = session.world
    one = forecast_memory(options, layers, share_of_graph(options, graph, world.size), session.backend).peak
    _refuse(options, [one] * world.local_size, host_memory(), world.host)


def refuse_part(options: "GcnSpec", part: "Part", session: "Session") -> None:
    """Refuse parts of which the ranks of one host together need more than it has; all ranks must call it.

    Raises:
        SpecError: They do; the same on every rank.
    """
    layers = plan_layers(options, part.num_features, part.num_classes)
    own = forecast_memory(options, layers, share_of_part(options, part), session.backend).peak
    ranks = cast(
        "list[list[Any]]", session.peers.share([session.world.node_rank, session.world.host, own, host_memory()])
    )
    for node, host in sorted({(node, host) for node, host, _, _ in ranks}):
        needs = [need for other, _, need, _ in ranks if other == node]
        _refuse(options, needs, min(has for other, _, _, has in ranks if other == node), str(host))


def _refuse(options: "GcnSpec", needs: Sequence[int], has: int, host: str) -> None:
    need = sum(needs)
    if need <= has or options.force:
        return
    ranks = "its rank needs" if len(needs) == 1 else f"its {len(needs)} ranks need"
    raise SpecError(
        f"{ranks} {need / 1e9:,.1f} GB, and {host} has {has / 1e9:,.1f} GB: take a smaller --hidden, fewer --layers, "
        "or ranks on more hosts (`unilaunch plan` shows the memory of a rank); --force trains nevertheless"
    )
