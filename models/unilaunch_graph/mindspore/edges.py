"""The edges of a part as the layers of our own use them, made once."""

from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.operators.edges import Edges, choose_edges


def edges_of(part: GraphPart, *, self_loops: bool) -> Edges:
    """Return the edges of *part*.

    Args:
        part: This rank's part.
        self_loops: As in `choose_edges`.
    """
    made = part.operators.made
    if self_loops not in made:
        num_sources = part.num_owned + part.num_halo
        made[self_loops] = choose_edges(
            part.operators.edges.ends, part.num_owned, num_sources, self_loops=self_loops
        ).edges
    edges: Edges = made[self_loops]
    return edges
