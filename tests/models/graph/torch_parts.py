"""A directed, weighted graph with edge features, and its parts as tensors, for ranks that are threads."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch

from graphs_by_hand import parts_of
from threaded_ranks import on_every_rank
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks

T = TypeVar("T")
PARTS = 3
#: Owners of 40 nodes by five parts: one has the nodes without an edge, another one no node, and the others are peers.
UNEVEN = np.where(np.arange(40) < 35, np.arange(40) % 3 * 2, 1)


@dataclass(frozen=True)
class Whole:
    """A whole graph, as PyG takes it, in float64; edges sorted by target, then by source."""

    x: torch.Tensor
    edge_index: torch.Tensor
    edge_weight: torch.Tensor
    edge_attr: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    graph: Graph

    @property
    def owned(self) -> torch.Tensor:
        """All nodes, as a part names its own. (num_nodes,) int64"""
        return torch.arange(len(self.x))


def make_whole(num_nodes: int = 40, num_edges: int = 140, width: int = 8, seed: int = 0) -> Whole:
    """Return a directed graph with loops, duplicates, and five nodes at its end that have no edge."""
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, num_nodes - 5, (2, num_edges))
    ends = ends[:, np.lexsort(ends)]
    x = draw.standard_normal((num_nodes, width)).astype(np.float32)
    weights = draw.random(num_edges, np.float32) + np.float32(0.5)
    edge_attr = draw.random((num_edges, 3), np.float32)
    labels, split = draw.integers(0, 3, num_nodes), draw.integers(0, 2, num_nodes).astype(np.uint8)
    graph = Graph(
        features=x, labels=labels, split=split, num_classes=3,
        **edges_as_given(ends[0], ends[1], num_nodes, weights, {"edge_attr": edge_attr})._asdict(),
    )  # fmt: skip
    rows, weight, attr = (torch.from_numpy(array).double() for array in (x, weights, edge_attr))
    edge_index, y, train_mask = (torch.from_numpy(array) for array in (ends, labels, split == 1))
    return Whole(rows, edge_index, weight, attr, y, train_mask, graph)


WHOLE = make_whole()


def on_parts(whole: Whole, size: int, work: Callable[[GraphPart], T], owner: Any = None) -> list[T]:
    """Return what *work* returns for each part; *owner* gives each node's part, by default by turns."""
    owners = np.arange(len(whole.x)) * 7 % size if owner is None else np.asarray(owner, np.int64)
    parts = parts_of(whole.graph, owners, size)

    def run(rank: int, collectives: Any) -> T:
        part = make_part(parts[rank], Ranks(rank, size, collectives, torch.device("cpu")))
        weight, attr = (None if one is None else one.double() for one in (part.edge_weight, part.edge_attr))
        return work(replace(part, x=part.x.double(), edge_weight=weight, edge_attr=attr))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return on_every_rank(size, run)
    finally:
        torch.set_num_threads(threads)


def each_part(size: int = PARTS, whole: Whole = WHOLE, owner: Any = None) -> Callable[[Any], Callable[..., None]]:
    """Run a test on each of *size* parts of a graph: its argument `part` is the rank's."""

    def decorate(test: Any) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            on_parts(whole, size, lambda part: test(part=part, **fixtures), owner)

        signature = inspect.signature(test)
        others = [one for one in signature.parameters.values() if one.name != "part"]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
