"""The option `--edges`: whether a layer takes a graph's edges as they are given. They are read from values too."""

from typing import TYPE_CHECKING

from unilaunch.errors import SpecError

if TYPE_CHECKING:
    from unilaunch_gcn.spec import TrainingSpec
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.part import Part


def takes_edges_as_given(options: "TrainingSpec") -> bool:
    """Return whether directions, loops and duplicates of edges stay: of sage and gat, if the user did not choose."""
    if options.edges is not None:
        return options.edges == "given"
    return options.conv != "gcn" and not options.use_gdc


def refuse_edges_as_given(options: "TrainingSpec") -> None:
    """Refuse edges as they are given where a symmetric graph is needed.

    Raises:
        SpecError: They are chosen for gcn, or with diffusion.
    """
    if options.edges != "given":
        return
    if options.conv == "gcn":
        raise SpecError("--edges given --conv gcn: A_hat needs a symmetric graph; expected --edges symmetric")
    if options.use_gdc:
        raise SpecError("--edges given --use-gdc: diffusion needs a symmetric graph; expected --edges symmetric")


def refuse_directed(graph: "Graph | Part", conv: str, halo: str, device: str) -> None:
    """Refuse what a layer does with a symmetric graph only.

    Args:
        graph: The graph, or a part of it.
        conv: The layer.
        halo: "exact", "stale", "int8" or "sample:P".
        device: "cpu", "auto", or a device.

    Raises:
        SpecError: The graph is directed, and the halo is not exact, or the device is not the CPU.
    """
    if not graph.is_directed:
        return
    given = "the edges are directed, or have loops or duplicates"
    if halo != "exact":
        raise SpecError(f"--halo {halo} --conv {conv}: {given}: expected --halo exact, or --edges symmetric")
    if device not in {"auto", "cpu"}:
        raise SpecError(f"--conv {conv} --device {device}: {given}: expected --device cpu, or --edges symmetric")


def told_of_edges(options: "TrainingSpec", part: "Part") -> str:
    """Return what a layer does with a directed graph, for the log."""
    has_weights = len(part.owned_weights) + len(part.halo_weights) > 0
    has_features = part.owned_edge_attr.shape[1] > 0
    if options.conv == "gat":
        unused = ", and uses neither their weights nor their features" if has_weights or has_features else ""
        return f"attention goes along the edges as they are given, in their directions{unused}"
    unused = ", and uses no features of theirs" if has_features else ""
    return (
        f"each node's mean is over the sources of its edges as they are given, in their directions{unused}; "
        "--edges symmetric makes the graph symmetric"
    )
