"""A directed, weighted graph with edge features, and its parts as tensors, for ranks that are threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from threaded_ranks import on_every_rank
from unilaunch.backend import Collectives
from unilaunch_graph.torch.part import GraphPart, SendPlan
from unilaunch_graph.torch.ranks import Ranks

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Whole:
    """A whole graph, as PyG takes it; edges sorted by target, then by source."""

    x: torch.Tensor
    edge_index: torch.Tensor
    edge_weight: torch.Tensor
    edge_attr: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor


def make_whole(num_nodes: int = 40, num_edges: int = 140, width: int = 8, seed: int = 0) -> Whole:
    """Return a directed graph with loops, duplicates, and five nodes at its end that have no edge."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, num_nodes - 5, (2, num_edges), generator=draw)
    ends = ends[:, np.lexsort(ends.numpy())]
    return Whole(
        torch.randn(num_nodes, width, generator=draw, dtype=torch.float64),
        ends,
        torch.rand(num_edges, generator=draw, dtype=torch.float64) + 0.5,
        torch.rand(num_edges, 3, generator=draw, dtype=torch.float64),
        torch.randint(0, 3, (num_nodes,), generator=draw),
        torch.rand(num_nodes, generator=draw) < 0.5,
    )


def cut(whole: Whole, owner: torch.Tensor, rank: int, size: int, collectives: Collectives) -> GraphPart:
    """Return one rank's part. Written from the definition, without the product's own cut."""
    owned = (owner == rank).nonzero().flatten()
    mine = owner[whole.edge_index[1]] == rank
    source, target = whole.edge_index[:, mine]

    def needed_by(other: int) -> torch.Tensor:
        into = torch.unique(whole.edge_index[0, owner[whole.edge_index[1]] == other])
        foreign: torch.Tensor = into[owner[into] != other]
        return foreign

    halo = torch.cat([nodes[owner[nodes] == other] for nodes in [needed_by(rank)] for other in range(size)])
    place = torch.full((len(owner),), -1)
    place[torch.cat([owned, halo])] = torch.arange(len(owned) + len(halo))
    local = torch.stack([place[source], place[target]])
    order = np.lexsort((source.numpy(), local[1].numpy()))
    sent = [place[nodes[owner[nodes] == rank]] for nodes in map(needed_by, range(size))]
    plan = SendPlan(
        tuple(sent), torch.cat(sent), [len(rows) for rows in sent],
        [int((owner[halo] == other).sum()) for other in range(size)],
    )  # fmt: skip
    mask = whole.train_mask[owned]
    total = int(whole.train_mask.sum())
    return GraphPart(
        whole.x[owned], local[:, order], whole.edge_weight[mine][order], whole.edge_attr[mine][order], whole.y[owned],
        mask, mask, mask, total, total, total, len(owner), len(owned), len(halo), 3, whole.x.shape[1], owned, rank,
        size, Ranks(rank, size, collectives, CPU), plan,
    )  # fmt: skip


def on_parts(whole: Whole, size: int, work: Callable[[GraphPart], T], owner: Any = None) -> list[T]:
    """Return what *work* returns for each part; *owner* deals the nodes out by turns, or as given."""
    owner = torch.arange(len(whole.x)) * 7 % size if owner is None else torch.as_tensor(owner)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return on_every_rank(size, lambda rank, ranks: work(cut(whole, owner, rank, size, ranks)))
    finally:
        torch.set_num_threads(threads)
