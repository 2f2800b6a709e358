"""Small graphs for the tests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from numpy.typing import NDArray

from unilaunch_graph.data.edges import edges_as_given, undirected
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

#: A graph, the owner of each node, and the number of parts.
Cut = tuple[Graph, NDArray[np.int64], int]


def read_graph(name: str | Path, data_dir: Path | None = None, seed: int = 0) -> Any:
    """Return a data set, as it is given."""
    return open_dataset(str(name), data_dir, None, seed, None).load()


def edges_of(graph: Graph) -> list[tuple[Any, ...]]:
    """Return source, target, weight and features of each edge, by target."""
    targets = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    weights = np.ones(len(targets)) if graph.weights is None else graph.weights
    features = map(tuple, graph.edge_arrays.get("edge_attr", np.zeros((len(targets), 0))).tolist())
    return list(zip(graph.indices.tolist(), targets.tolist(), weights.tolist(), features, strict=True))


def make_graph(num_nodes: int, edges: list[tuple[int, int]]) -> Graph:
    """Return a graph whose features name their node."""
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    indptr, indices = undirected(ends[0], ends[1], num_nodes)
    features = np.arange(num_nodes, dtype=np.float32)[:, None].repeat(3, axis=1)
    split = (np.arange(num_nodes) % 4).astype(np.uint8)
    return Graph(indptr, indices, features, np.arange(num_nodes) % 2, split, 2)


def random_graph(num_nodes: int, num_edges: int, num_features: int, *, sparse: bool = False) -> Graph:
    """Return a graph of three classes, always the same one; about half of its features are 0."""
    draw = np.random.default_rng(3)
    plain = make_graph(num_nodes, [(int(a), int(b)) for a, b in draw.integers(0, num_nodes, (num_edges, 2))])
    shape = num_nodes, num_features
    x = (draw.random(shape) * (draw.random(shape) < 0.5)).astype(np.float32)
    features = sp.csr_array(x) if sparse else x
    return replace(plain, features=features, labels=np.arange(num_nodes) % 3, num_classes=3)


def make_directed_graph(num_nodes: int, edges: list[tuple[int, int]]) -> Graph:
    """Return a graph of (source, target), as given: with weights that name the edge, and two features of each edge."""
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    place = np.arange(len(edges), dtype=np.float32)
    edge_attr = np.stack([place, -place], axis=1)
    given = edges_as_given(ends[0], ends[1], num_nodes, 1 + place / 4, {"edge_attr": edge_attr})
    return replace(make_graph(num_nodes, []), **given._asdict())


@st.composite
def _cut(draw: st.DrawFn, make: Callable[..., Graph], most_nodes: int, most_parts: int) -> Cut:
    """Draw a graph with loops and duplicates, an owner of each node, and the number of parts; parts may be empty."""
    num_nodes, num_parts = draw(st.integers(1, most_nodes)), draw(st.integers(1, most_parts))
    node = st.integers(0, num_nodes - 1)
    graph = make(num_nodes, draw(st.lists(st.tuples(node, node), max_size=60)))
    owner = draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    return graph, np.array(owner, np.int64), num_parts


def cut_graphs() -> st.SearchStrategy[Cut]:
    """Draw a symmetric graph and a cut of it."""
    return _cut(make_graph, 24, 5)


def cut_directed_graphs() -> st.SearchStrategy[Cut]:
    """Draw a graph with directions, and a cut of it."""
    return _cut(make_directed_graph, 12, 4)


def dense_adjacency(graph: Graph) -> NDArray[np.bool_]:
    """Return which edges there are as a dense matrix, row = target. (num_nodes, num_nodes)"""
    dense = np.zeros((graph.num_nodes, graph.num_nodes), bool)
    dense[np.repeat(np.arange(graph.num_nodes), graph.degrees), graph.indices] = True
    return dense


def dense_a_hat(graph: Graph) -> NDArray[Any]:
    """Return D^-1/2 (A + I) D^-1/2 as a dense float64 matrix. (num_nodes, num_nodes)"""
    dense = dense_adjacency(graph) + np.eye(graph.num_nodes)
    scale = dense.sum(axis=1) ** -0.5
    return np.asarray(scale[:, None] * dense * scale)


def parts_of(graph: Graph, owner: Any = None, num_parts: int = 0) -> list[Part]:
    """Return the parts of a graph; *num_parts* if the last ones are empty; without an owner one part is all."""
    owners = np.zeros(graph.num_nodes, np.int64) if owner is None else np.asarray(owner, np.int64)
    return list(split_parts(graph, order_nodes(graph.structure(), owners, num_parts or int(owners.max()) + 1)))
