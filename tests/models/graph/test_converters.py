"""Graphs of PyG, networkx, SciPy, arrays and tables become folders that are read as the same graph."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import unilaunch_graph as ug
from full_disk import refusal_without_space
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError, PluginError
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Graph
from unilaunch_graph.data.labels import Task, task_of
from unilaunch_graph.data.sources import open_dataset

#: PyG compiles functions with torch.jit.script when it is imported, and torch 2.13 calls that deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
ENDS = np.array([[0, 3, 1, 1, 2, 2], [1, 1, 0, 1, 3, 3]])
WEIGHTS = np.array([1, 2, 3, 4, 5, 6.5])
FEATURES = np.arange(12.0).reshape(6, 2)
X = np.arange(8, dtype=np.float32).reshape(4, 2)
Y = np.array([0, 2, 1, -1])
#: (source, target, weight, edge features), by target and source.
EDGES = [(1, 0, 3, (4, 5)), (0, 1, 1, (0, 1)), (1, 1, 4, (6, 7)), (3, 1, 2, (2, 3)), (2, 3, 5, (8, 9)),
         (2, 3, 6.5, (10, 11))]  # fmt: skip
TRAINED = np.array([True, False, False, False])
TESTED = np.array([False, False, True, False])


def _load(folder: Path) -> Graph:
    return open_dataset(str(folder), None, None, 0, None).load()


def _edges(graph: Graph) -> list[tuple[Any, ...]]:
    targets = np.repeat(np.arange(graph.num_nodes), graph.degrees).tolist()
    weights = [1] * len(targets) if graph.weights is None else graph.weights.tolist()
    features = [tuple(row) for row in graph.edge_arrays.get("edge_attr", np.zeros((len(targets), 0))).tolist()]
    return list(zip(graph.indices.tolist(), targets, weights, features, strict=True))


@pytest.fixture
def data() -> Any:
    """PyG's container of the graph above."""
    import torch
    from torch_geometric.data import Data

    tensor = torch.as_tensor
    return Data(
        x=tensor(X), edge_index=tensor(ENDS), edge_weight=tensor(WEIGHTS), edge_attr=tensor(FEATURES), y=tensor(Y),
        train_mask=tensor(TRAINED), test_mask=tensor(TESTED),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor|invariant):UserWarning")
@pytest.mark.parametrize("name", ["edge_index", "adj_t"])
def test_from_pyg_with_edges_as_a_matrix(name: str, data: Any, tmp_path: Path) -> None:
    """As PyG's layers take it: rows are targets. Values that are not 1 are weights."""
    import torch
    from torch_geometric.data import Data

    once = ENDS[:, :5]
    matrix = torch.sparse_coo_tensor(torch.tensor(once[::-1].copy()), torch.tensor(WEIGHTS[:5]), (4, 4))
    given = matrix.coalesce() if name == "adj_t" else matrix.coalesce().to_sparse_csr()
    graph = _load(ug.from_pyg(Data(x=data.x, y=data.y, **{name: given}), tmp_path / "own", split=(1, 0, 0)))
    assert _edges(graph) == [(*edge[:3], ()) for edge in EDGES[:5]]


def test_from_pyg(data: Any, tmp_path: Path) -> None:
    """All that the container holds; a mask that it lacks is empty."""
    folder = ug.from_pyg(data, tmp_path / "own")
    assert folder == tmp_path / "own"
    graph = _load(folder)
    assert _edges(graph) == EDGES
    np.testing.assert_array_equal(np.asarray(graph.features), X)
    assert graph.labels.tolist() == Y.tolist()
    assert graph.split.tolist() == [TRAIN, NONE, TEST, NONE]
    assert ug.read_names(folder) == (None, None)


def test_from_pyg_of_other_forms(data: Any, tmp_path: Path) -> None:
    """Edge features of one dimension, classes in a column, sparse features, values to predict."""
    data.edge_attr, data.y = data.edge_weight, data.y[:, None]
    data.x = data.x.to_sparse()
    del data.train_mask, data.test_mask, data.edge_weight
    graph = _load(ug.from_pyg(data, tmp_path / "own"))
    assert graph.edge_arrays["edge_attr"][:, 0].tolist() == [edge[2] for edge in EDGES]
    assert sp.issparse(graph.features)
    assert graph.features.toarray().tolist() == X.tolist()  # type: ignore[union-attr]
    assert graph.labels.tolist() == Y.tolist()
    data.y = data.y * 0.5
    assert task_of(_load(ug.from_pyg(data, tmp_path / "values")).labels) is Task.REGRESSION


def test_types_of_edges_are_an_array_of_their_own(data: Any, tmp_path: Path) -> None:
    """As `to_homogeneous` and PyG's sets for RGCN have them, also beside features of the edges."""
    data.edge_type = np.arange(6)
    beside = _load(ug.from_pyg(data, tmp_path / "beside"))
    del data.edge_attr
    alone = _load(ug.from_pyg(data, tmp_path / "alone"))
    for graph in (alone, beside):
        types = [(*edge[:2], kind) for edge, kind in zip(_edges(graph), graph.edge_arrays["edge_type"], strict=True)]
        assert sorted(types) == sorted(zip(*np.asarray(ENDS).tolist(), range(6), strict=True))
    for wrong, words in ((np.arange(5), r"shape \(6,\), not \(5,\)"), (["a"] * 6, "whole numbers, not <U1")):
        data.edge_type = wrong
        with pytest.raises(InputError, match=f"edge_type must (be|have) {words}"):
            ug.from_pyg(data, tmp_path / "unlike")


def test_from_pyg_takes_lists(data: Any, tmp_path: Path) -> None:
    """PyG's container holds what it is given."""
    data.train_mask, data.test_mask, data.edge_attr = TRAINED.tolist(), TESTED.tolist(), WEIGHTS.tolist()
    graph = _load(ug.from_pyg(data, tmp_path / "own"))
    assert graph.split.tolist() == [TRAIN, NONE, TEST, NONE]
    assert graph.edge_arrays["edge_attr"].shape == (6, 1)


@pytest.mark.parametrize("kind", ["int64", "int16", "uint8", "float64", "float32", "float16", "bool"])
def test_arrays_keep_their_types_on_disk(kind: str, tmp_path: Path) -> None:
    """What a run computes with is its own choice: a folder holds what the user gave."""
    rows, edges = np.ones((4, 2)).astype(kind), np.ones((6, 2)).astype(kind)
    folder = ug.from_edges(ENDS, tmp_path / "own", x=rows, y=Y, edge_attr=edges, edge_weight=edges[:, 0],
                           node_arrays={"year": rows[:, 0]}, edge_arrays={"time": edges[:, 0]})  # fmt: skip
    names = ("x", "edge_attr", "edge_weight", "node.year", "edge.time")
    assert {np.load(folder / f"{name}.npy").dtype for name in names} == {np.dtype(kind)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": np.array([["2020-01-01"]] * 4, "M8[D]")}, r"x must be numbers, not datetime64\[D\]: give seconds: "),
        ({"edge_attr": np.array([["2020-01-01"]] * 6, "M8[s]")}, r"edge_attr must be numbers, not datetime64\[s\]: "),
        ({"edge_arrays": {"time": np.array(["a"] * 6)}}, r"edge\.time must be numbers, not <U1"),
        ({"node_arrays": {"name": np.array([None] * 4)}}, r"node\.name must be numbers, not object"),
        ({"node_arrays": {"year": np.arange(5)}}, r"node\.year must have 4 rows, not the shape \(5,\)"),
        ({"node_arrays": {"../year": np.arange(4)}}, r"the array '\.\./year': expected a name of letters"),
        (
            {"x": np.full((4, 1), 2**24 + 1)},
            "x of node 0 is 16777217 in column 0, which float32 rounds: .*node_arrays=",
        ),
        ({"x": sp.csr_array(np.full((4, 1), 2**24 + 1))}, "x of node 0 is 16777217 in column 0, which float32 rounds"),
        ({"edge_weight": np.arange(6) + 2**40}, "edge_weight of edge 1 is 1099511627777, which float32 .*edge_arrays="),
    ],
)
def test_what_no_part_can_hold_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Dates, text and objects; whole numbers that features would round, with the way out."""
    with pytest.raises(InputError, match=words):
        ug.from_edges(ENDS, tmp_path / "own", **{"x": X, "y": Y, **given})
    assert list(tmp_path.iterdir()) == []


def test_from_pyg_refuses_what_it_cannot_write(data: Any, tmp_path: Path) -> None:
    """By name: several kinds of nodes, several splits, no edges."""
    from torch_geometric.data import HeteroData

    with pytest.raises(InputError, match=r"heterogeneous data .* give data\.to_homogeneous\(\)"):
        ug.from_pyg(HeteroData(), tmp_path / "own")
    data.train_mask = data.train_mask[:, None].repeat(1, 10)
    with pytest.raises(InputError, match="train_mask has 10 splits: choose one"):
        ug.from_pyg(data, tmp_path / "own")
    del data.train_mask
    del data.edge_index
    with pytest.raises(InputError, match="has neither edge_index nor adj_t"):
        ug.from_pyg(data, tmp_path / "own")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [sp.csr_array, sp.coo_matrix, sp.csc_matrix])
def test_from_scipy(kind: Any, tmp_path: Path) -> None:
    """Entry (i, j) is the edge from i to j; a matrix of ones has no weights; features may be sparse."""
    matrix = kind(np.array([[0, 2.5, 0], [0, 0, 1], [0, 3, 0]]))
    masks: dict[str, Any] = {"train_mask": [True, False, False], "val_mask": [False, True, False]}
    graph = _load(ug.from_scipy(matrix, tmp_path / "own", x=sp.eye_array(3), y=[0, 1, 1], **masks))
    assert _edges(graph) == [(0, 1, 2.5, ()), (2, 1, 3, ()), (1, 2, 1, ())]
    assert graph.split.tolist() == [TRAIN, VAL, NONE]
    assert sp.issparse(graph.features)
    plain = _load(ug.from_scipy(matrix > 0, tmp_path / "plain", x=np.eye(3), y=[0, 1, 1]))
    assert plain.weights is None
    with pytest.raises(InputError, match=r"shape \(2, 3\); expected as many rows as columns"):
        ug.from_scipy(kind(np.ones((2, 3))), tmp_path / "wide", x=np.eye(2), y=[0, 1])


def test_from_scipy_of_other_matrices(tmp_path: Path) -> None:
    """A sparse tensor is one; a vector, and objects, are refused."""
    import torch

    matrix = torch.tensor([[0, 2.5], [1, 0]]).to_sparse()
    folder = ug.from_scipy(matrix, tmp_path / "own", x=np.eye(2), y=[0, 1])
    assert _edges(_load(folder)) == [(1, 0, 1, ()), (0, 1, 2.5, ())]
    for wrong, words in (
        (sp.coo_array(np.ones(3)), r"shape \(3,\); expected as many rows as columns"),
        ([[1, None], [0, 1]], "the adjacency is no sparse matrix of numbers"),
        ("path", "the adjacency is no sparse matrix of numbers"),
    ):
        with pytest.raises(InputError, match=words):
            ug.from_scipy(wrong, tmp_path / "wrong", x=np.eye(2), y=[0, 1])


def test_from_networkx_of_a_directed_graph(tmp_path: Path) -> None:
    """Names, weights, edge features, masks and labels in text; the order is that of graph.nodes."""
    graph = nx.DiGraph()
    for name, color in (("b", "red"), ("a", "blue"), ("c", "red")):
        graph.add_node(name, x=[ord(name), 1.0], y=color, train_mask=name == "a")
    graph.add_edge("b", "a", weight=2.0, length=5, kind=1)
    graph.add_edge("c", "a", length=6, kind=0)
    folder = ug.from_networkx(graph, tmp_path / "own", edge_attr=("length", "kind"))
    found = _load(folder)
    assert _edges(found) == [(0, 1, 2, (5, 1)), (2, 1, 1, (6, 0))]
    assert np.asarray(found.features)[:, 0].tolist() == [98, 97, 99]
    assert found.labels.tolist() == [1, 0, 1]
    assert found.split.tolist() == [NONE, TRAIN, NONE]
    assert ug.read_names(folder) == (["b", "a", "c"], ["blue", "red"])
    other = _load(ug.from_networkx(graph, tmp_path / "named", node_arrays=["x"], edge_arrays=["length", "kind"]))
    assert {name: array.tolist() for name, array in other.edge_arrays.items() if name != "edge_ids"} == {
        "length": [5, 6], "kind": [1, 0]
    }  # fmt: skip
    assert other.node_arrays["x"][:, 0].tolist() == [98, 97, 99]
    with pytest.raises(InputError, match="the edge from 'b' to 'a' has no attribute 'speed'; it has weight, length"):
        ug.from_networkx(graph, tmp_path / "other", edge_attr=("speed",))
    with pytest.raises(InputError, match="node 'b' has no attribute 'z'; it has x, y, train_mask"):
        ug.from_networkx(graph, tmp_path / "other", x="z")


def test_from_networkx_of_the_karate_club(tmp_path: Path) -> None:
    """An undirected graph has each edge in both directions; its names are numbers already."""
    club = nx.karate_club_graph()
    folder = ug.from_networkx(club, tmp_path / "club", x=np.eye(34), y="club")
    graph = _load(folder)
    assert len(graph.indices) == 2 * club.number_of_edges()
    assert not graph.is_directed
    assert graph.num_classes == 2
    assert ug.read_names(folder) == (None, ["Mr. Hi", "Officer"])
    club.add_edge(3, 3, weight=2)
    looped = _load(ug.from_networkx(club, tmp_path / "looped", x=np.eye(34), y="club"))
    assert len(looped.indices) == len(graph.indices) + 1


def test_attributes_of_networkx_may_be_tensors_and_names_numpy_s_numbers(tmp_path: Path) -> None:
    """Also with a gradient. Another number of rows than of nodes is refused, though the names are the numbers."""
    import torch

    graph = nx.DiGraph()
    for name in np.array([7, 8]):
        graph.add_node(name, x=torch.ones(2, requires_grad=True), y=torch.tensor(int(name) % 2))
    graph.add_edge(7, 8, weight=torch.tensor(2.0, requires_grad=True), length=torch.tensor(1.0, requires_grad=True))
    folder = ug.from_networkx(graph, tmp_path / "own", edge_attr=["length"])
    assert ug.read_names(folder).nodes == [7, 8]
    assert _edges(_load(folder)) == [(0, 1, 2, (1,))]
    with pytest.raises(InputError, match="34 names of nodes, but y has 35 rows"):
        ug.from_networkx(nx.karate_club_graph(), tmp_path / "club", x=np.eye(35), y=np.arange(35) % 2)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Numpy's error about it has no number."""
    refused = refusal_without_space(
        lambda: ug.from_edges([[0], [1]], tmp_path / "own", x=np.ones((2, 1 << 17)), y=[0, 1]), 100_000
    )
    assert "cannot be written: " in refused
    assert "None" not in refused


def test_one_attribute_of_edges_needs_no_list(tmp_path: Path) -> None:
    """Its letters are no names of attributes."""
    graph = nx.path_graph(3, nx.DiGraph)
    nx.set_edge_attributes(graph, {(0, 1): 3.0, (1, 2): 4.0}, "km")
    folder = ug.from_networkx(graph, tmp_path / "own", x=np.eye(3), y=[0, 1, 0], edge_attr="km")
    assert np.load(folder / "edge_attr.npy").tolist() == [[3], [4]]


def test_attributes_of_unequal_length_are_refused(tmp_path: Path) -> None:
    graph = nx.Graph()
    graph.add_node("a", x=[1, 2], y=0)
    graph.add_node("b", x=[1], y=1)
    with pytest.raises(InputError, match="the nodes' 'x' are not all of one length"):
        ug.from_networkx(graph, tmp_path / "own")


def test_unsorted_features_stay_the_users(tmp_path: Path) -> None:
    """A sparse matrix whose columns do not ascend is sorted in a copy, and is written and read right."""
    x = sp.csr_array(
        (np.array([1, 2, 3], np.float32), np.array([2, 0, 1], np.int32), np.array([0, 2, 3])), shape=(2, 3)
    )
    wanted = x.toarray()
    folder = ug.from_edges([[0], [1]], tmp_path / "own", x=x, y=[0, 1])
    np.testing.assert_array_equal(x.toarray(), wanted)
    features = _load(folder).features
    assert isinstance(features, sp.csr_array)
    np.testing.assert_array_equal(features.toarray(), wanted)


def test_from_edges_of_arrays(tmp_path: Path) -> None:
    """As they are; names are numbered in the order of nodes=."""
    arrays: dict[str, Any] = {"edge_weight": WEIGHTS, "edge_attr": FEATURES, "x": X, "y": Y}
    folder = ug.from_edges(ENDS, tmp_path / "own", **arrays)
    assert _edges(_load(folder)) == EDGES
    names = np.array(["zoe", "al", "kim", "bo"])
    named = ug.from_edges(names[ENDS], tmp_path / "named", nodes=names.tolist(), **arrays)
    assert _edges(_load(named)) == EDGES
    assert ug.read_names(named).nodes == names.tolist()
    numbered = ug.from_edges(ENDS + 10, tmp_path / "numbered", nodes=[10, 11, 12, 13], **arrays)
    assert _edges(_load(numbered)) == EDGES


def test_a_graph_may_have_no_edges(tmp_path: Path) -> None:
    """An empty list is one of floats, and an empty column of a table has no type."""
    (tmp_path / "edges.csv").write_text("source,target,weight\n")
    for number, edges in enumerate(([[], []], np.zeros((2, 0), np.int32), tmp_path / "edges.csv")):
        for nodes in (None, ["a", "b", "c", "d"]):
            folder = ug.from_edges(edges, tmp_path / f"{number}{nodes}", x=X, y=Y, nodes=nodes)
            assert len(_load(folder).indices) == 0
    with pytest.raises(InputError, match=r"edge_index must have shape \(2, any\)"):
        ug.from_edges([], tmp_path / "none", x=X, y=Y)


@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support")
def test_tensors_of_every_kind_become_arrays(data: Any, tmp_path: Path) -> None:
    """Of numbers that numpy lacks, with a gradient, sparse."""
    import torch

    half = torch.from_numpy(X).bfloat16()
    data.x = half.requires_grad_()
    arrays = {"edge_weight": torch.from_numpy(WEIGHTS).requires_grad_(), "edge_attr": FEATURES, "y": data.y}
    folders = [
        ug.from_pyg(data, tmp_path / "pyg"),
        ug.from_edges(data.edge_index, tmp_path / "edges", x=data.x, **arrays),
        ug.from_edges(data.edge_index, tmp_path / "sparse", x=half.detach().to_sparse(), **arrays),
        ug.from_edges(data.edge_index, tmp_path / "csc", x=half.detach().to_sparse_csc(), **arrays),
    ]
    for folder in folders:
        graph = _load(folder)
        assert _edges(graph) == EDGES
        features: Any = graph.features
        dense = features.toarray() if sp.issparse(features) else np.asarray(features)
        np.testing.assert_array_equal(dense, half.float().detach().numpy())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges": np.array([["a"], ["b"]])}, "the ends of edges are names: give nodes="),
        ({"nodes": ["a", "b"]}, r"nodes are <U1 \(2,\), and the ends of edges int64"),
        ({"nodes": [0, 1, 2, 2]}, "the node 2 is named twice"),
        ({"nodes": [0, 1, 2, 9]}, "edge 1: source 3 is not among the nodes"),
        ({"edge_weight": WEIGHTS[:5]}, r"edge_weight must have shape \(6,\), not \(5,\)"),
        ({"nodes": [0, 1, 2, 3, 4], "y": None}, "5 names of nodes, but x has 4 rows"),
        ({"val_mask": [True], "y": None, "x": X[:0]}, "x has no row"),
        ({"nodes": [0, 1, 2, 3, 4]}, "5 names of nodes, but y has 4 rows"),
        ({"nodes": [0, 1, 2, 3], "x": X[:, :1].repeat(5).reshape(5, 4), "y": [0, 1, 0, 1, 0]}, "4 names .* 5 rows"),
        ({"x": [[1, 2], [3]]}, "x is no array: expected rows of one length"),
        ({"edges": [[0, 1], [1]]}, "edges is no array: expected rows of one length"),
        ({"edges": ENDS.T, "nodes": [0, 1, 2, 3]}, r"edges have the shape \(6, 2\); expected \(2, num_edges\)"),
        ({"edges": np.array([[b"\xe9"], [b"b"]]), "nodes": ["a", "b", "c", "d"]}, "edges are bytes beyond ASCII"),
        ({"y": np.ma.masked_equal([0, 1, 0, 9], 9)}, "y has masked values: fill them"),  # type: ignore[no-untyped-call]
        ({"x": np.ma.masked_greater(X, 1)}, "x has masked values: fill them"),  # type: ignore[no-untyped-call]
        ({"train_mask": [True]}, r"train_mask must have shape \(4,\)"),
    ],
)
def test_from_edges_refuses_what_does_not_fit(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """In one line, and nothing is left."""
    arrays: dict[str, Any] = {"edges": ENDS, "x": X, "y": Y, **changes}
    with pytest.raises(InputError, match=words) as refusal:
        ug.from_edges(arrays.pop("edges"), tmp_path / "own", **arrays)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("masks", [{}, {"val_mask": TRAINED}])
def test_a_graph_without_labels_is_written(masks: dict[str, Any], tmp_path: Path, data: Any) -> None:
    """By each converter; no label is known then, and no node is to train on."""
    network = nx.Graph([(0, 1), (2, 3)])
    del data.y
    folders = [
        ug.from_edges(ENDS, tmp_path / "edges", x=X, **masks),
        ug.from_scipy(sp.eye_array(4), tmp_path / "scipy", x=X, **masks),
        ug.from_networkx(network, tmp_path / "networkx", x=X, y=None),
        ug.from_pyg(data, tmp_path / "pyg"),
    ]
    for folder in folders:
        graph = _load(folder)
        assert graph.labels.tolist() == [-1] * 4
        assert graph.split.tolist() == [NONE] * 4


def test_a_folder_that_exists_is_refused_or_replaced(tmp_path: Path) -> None:
    """A graph is replaced if the user says so; a folder that holds more is not."""
    folder = ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, nodes=[0, 1, 2, 3])
    for changed in ({"x": X + 1, "y": Y}, {"x": X}):
        with pytest.raises(InputError, match=r"own: exists already, with other content: .* overwrite=True"):
            ug.from_edges(ENDS, folder, **changed, nodes=[0, 1, 2, 3])
    ug.from_edges(ENDS[:, :3], folder, x=X, overwrite=True)
    assert len(_load(folder).indices) == 3
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["edge_index.npy", "own", "x.npy"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="own: holds more than a graph, and is not overwritten"):
        ug.from_edges(ENDS, folder, x=X, overwrite=True)
    with pytest.raises(InputError, match="/proc/none: cannot be written"):
        ug.from_edges(ENDS, "/proc/none", x=X, y=Y)


def test_a_script_converts_its_graph_in_each_run_on_all_ranks(tmp_path: Path) -> None:
    """The same data is written once, by whichever rank is first."""
    folders = on_every_rank(4, lambda _rank, _collectives: ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y))
    written = {path: path.stat().st_ino for path in folders[0].iterdir()}
    ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y)
    ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, overwrite=True)
    assert {path: path.stat().st_ino for path in folders[0].iterdir()} == written
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of nobody, a name that is too long; ~ is the user's home, to write and to read."""
    for folder, words in (("~nouser/own", "home directory"), (tmp_path / ("g" * 300), "File name too long")):
        with pytest.raises(InputError, match=f"cannot be written: .*{words}"):
            ug.from_edges(ENDS, folder, x=X, y=Y)
    monkeypatch.setenv("HOME", str(tmp_path))
    ug.from_edges(ENDS, "~/own", x=X, y=Y, nodes=[0, 1, 2, 3])
    assert ug.read_names("~/own").nodes == [0, 1, 2, 3]
    with pytest.raises(InputError, match="none: no such folder"):
        ug.read_names(tmp_path / "none")


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        (np.array(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"], "M8[ns]"), None),
        (np.array([b"a", b"b", b"c", b"d"]), ["a", "b", "c", "d"]),
        (np.array(["a\udce9", "b", "c", "d"]), ["a\udce9", "b", "c", "d"]),
    ],
)
def test_names_of_every_kind_are_kept_as_text(nodes: Any, names: list[str] | None, tmp_path: Path) -> None:
    """Dates, bytes, and what stands for bytes that are no UTF-8."""
    folder = ug.from_edges(nodes[ENDS], tmp_path / "own", x=X, y=Y, nodes=nodes)
    assert [edge[:2] for edge in _edges(_load(folder))] == [edge[:2] for edge in EDGES]
    assert ug.read_names(folder).nodes == (names or nodes.astype(str).tolist())


def test_damaged_names_are_refused(tmp_path: Path) -> None:
    folder = ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, nodes=[0, 1, 2, 3])
    assert json.loads((folder / "names.json").read_text())["nodes"] == [0, 1, 2, 3]
    (folder / "names.json").write_text("[]")
    with pytest.raises(InputError, match=r"names\.json: is damaged"):
        ug.read_names(folder)


EDGE_LINES = "source,target,weight,km\nzoe,al,1.5,3\nkim,al,2,4\nzoe,kim,1,5\n"
NODE_LINES = "node,age,size,y,train_mask\nzoe,30,1.5,0.5,true\nal,40,2.5,,false\nkim,50,3.5,2.5,false\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with edges.csv, nodes.csv, and the same as Parquet."""
    from pyarrow import csv, parquet

    for name, lines in (("edges", EDGE_LINES), ("nodes", NODE_LINES)):
        (tmp_path / f"{name}.csv").write_text(lines)
        parquet.write_table(csv.read_csv(tmp_path / f"{name}.csv"), tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_from_edges_of_tables(tables: Path, suffix: str) -> None:
    """Names, weights, chosen columns; an empty cell of y is an unknown value."""
    edges, nodes = tables / f"edges.{suffix}", str(tables / f"nodes.{suffix}")
    folder = ug.from_edges(edges, tables / "own", nodes=nodes, edge_attr=["km"])
    graph = _load(folder)
    assert _edges(graph) == [(0, 1, 1.5, (3,)), (2, 1, 2, (4,)), (0, 2, 1, (5,))]
    assert np.asarray(graph.features).tolist() == [[30, 1.5], [40, 2.5], [50, 3.5]]
    np.testing.assert_array_equal(graph.labels, np.array([0.5, np.nan, 2.5], np.float32))
    assert graph.split.tolist() == [TRAIN, NONE, NONE]
    assert ug.read_names(folder).nodes == ["zoe", "al", "kim"]
    chosen = _load(ug.from_edges(edges, tables / "chosen", nodes=nodes, x=["size"]))
    assert np.asarray(chosen.features).tolist() == [[1.5], [2.5], [3.5]]
    assert "edge_attr" not in chosen.edge_arrays


def test_columns_of_tables_may_be_arrays_of_their_own(tables: Path) -> None:
    """Times beside fractions would be rounded: the column is named, with the way out."""
    lines = "source,target,km,time\nzoe,al,1.5,1700000001\nkim,al,2,1700000002\n"
    (tables / "edges.csv").write_text(lines)
    (tables / "nodes.csv").write_text("node,age,id\nzoe,30.5,16777217\nal,40,16777219\nkim,50,16777221\n")
    edges, nodes = tables / "edges.csv", tables / "nodes.csv"
    graph = _load(ug.from_edges(edges, tables / "own", nodes=nodes, edge_arrays=["time"], node_arrays=["id"]))
    assert graph.edge_arrays["time"].tolist() == [1_700_000_001, 1_700_000_002]
    assert graph.node_arrays["id"].tolist() == [2**24 + 1, 2**24 + 3, 2**24 + 5]
    assert graph.num_features == 1
    with pytest.raises(InputError, match=r"id of node 0 is 16777217, which float32 rounds: .*node_arrays=\['id'\]"):
        ug.from_edges(edges, tables / "other", nodes=nodes)
    with pytest.raises(InputError, match=r"time of edge 0 is 1700000001, which float32 .*edge_arrays=\['time'\]"):
        ug.from_edges(edges, tables / "other", nodes=nodes, x=["age"], edge_attr=["km", "time"])
    with pytest.raises(InputError, match="edge_arrays: expected arrays by name"):
        ug.from_edges(ENDS, tables / "other", x=X, edge_arrays=["time"])


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_of_a_data_frame_is_no_feature(tables: Path, name: str) -> None:
    """`DataFrame.to_csv` writes it without a name, which `pandas.read_csv` reads as Unnamed: 0."""
    lines = NODE_LINES.splitlines()
    numbered = [f"{number},{line}" for number, line in enumerate(lines[1:])]
    (tables / "nodes.csv").write_text("\n".join([f"{name},{lines[0]}", *numbered, ""]))
    graph = _load(ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv"))
    assert np.asarray(graph.features).tolist() == [[30, 1.5], [40, 2.5], [50, 3.5]]


def test_categories_are_text(tables: Path) -> None:
    """A column that pandas wrote as a categorical."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    table = csv.read_csv(tables / "nodes.csv")
    table = table.set_column(0, "node", table.column("node").cast(pa.dictionary(pa.int32(), pa.string())))
    parquet.write_table(table, tables / "nodes.parquet")
    folder = ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.parquet")
    assert ug.read_names(folder).nodes == ["zoe", "al", "kim"]


def test_classes_with_empty_cells_stay_classes(tables: Path) -> None:
    """-1, and not values to predict."""
    (tables / "nodes.csv").write_text("node,a,y\nzoe,1,1\nal,1,\nkim,1,0\n")
    graph = _load(ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv"))
    assert graph.labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("edges", "nodes", "given", "words"),
    [
        ("from,to\na,b\n", NODE_LINES, {}, r"edges\.csv: has no column source, target; it has from, to"),
        ("source,target\nzoe,\n", NODE_LINES, {}, r"edges\.csv: "),
        ("source,target\nzoe,max\n", NODE_LINES, {}, "edge 0: target max is not among the nodes"),
        ("source,target,weight\nzoe,al,\n", NODE_LINES, {}, "column weight has 1 empty cells"),
        (EDGE_LINES, NODE_LINES.replace("50", "old"), {}, "column age holds text, not numbers: row 3 has 'old'"),
        (
            EDGE_LINES,
            NODE_LINES.replace("2.5,false", "?,false"),
            {},
            r"y of node 2 is '\?', beside numbers such as '0.5'",
        ),
        (EDGE_LINES, NODE_LINES.replace("size", "age"), {}, r"nodes\.csv: has the column age twice"),
        (EDGE_LINES, "node,a,y\n1,1,0\n2,1,1\n", {}, "edge 0: source zoe is not among the nodes"),
        (EDGE_LINES, NODE_LINES, {"edge_attr": ["kg"]}, "has no column kg; it has source, target, weight, km"),
        (EDGE_LINES, NODE_LINES, {"y": [1, 2, 3]}, "nodes is a table, so y must be its columns"),
        (EDGE_LINES, NODE_LINES, {"edge_weight": [1, 2, 3]}, "edges is a table, so edge_weight must be its columns"),
    ],
)
def test_faults_of_tables_are_named(tables: Path, edges: str, nodes: str, given: dict[str, Any], words: str) -> None:
    """File and column."""
    (tables / "edges.csv").write_text(edges)
    (tables / "nodes.csv").write_text(nodes)
    with pytest.raises(InputError, match=words) as refusal:
        ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv", **given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["uint8", "uint32", "uint64"])
def test_whole_numbers_of_a_table_may_be_unsigned(tables: Path, kind: str) -> None:
    """As polars numbers rows; an empty class is -1 all the same."""
    import pyarrow as pa
    from pyarrow import parquet

    whole = pa.type_for_alias(kind)
    nodes = {"node": pa.array([0, 1, 2], whole), "a": pa.array([5, 6, 7], whole), "y": pa.array([1, None, 0], whole)}
    parquet.write_table(pa.table(nodes), tables / "nodes.parquet")
    edges = {"source": pa.array([0, 2], whole), "target": pa.array([1, 1], whole)}
    parquet.write_table(pa.table(edges), tables / "edges.parquet")
    folder = ug.from_edges(tables / "edges.parquet", tables / "own", nodes=tables / "nodes.parquet")
    assert _load(folder).labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    "kinds", [("int64", "int64", "uint64"), ("int64", "uint64", "uint64"), ("uint64", "int64", "int64")]
)
def test_large_numbers_are_no_other_nodes(kinds: tuple[str, str, str], tmp_path: Path) -> None:
    """Numpy compares and joins int64 and uint64 as float64, in which the two are equal."""
    import pyarrow as pa
    from pyarrow import parquet

    nodes = [2**53, 2**53 + 1, 7]
    columns = {"node": nodes, "source": [nodes[1]], "target": [nodes[0]]}
    node, *ends = [pa.array(column, kind) for column, kind in zip(columns.values(), kinds, strict=True)]
    parquet.write_table(pa.table({"node": node, "a": [1, 2, 3], "y": [0, 1, 0]}), tmp_path / "nodes.parquet")
    parquet.write_table(pa.table({"source": ends[0], "target": ends[1]}), tmp_path / "edges.parquet")
    folder = ug.from_edges(tmp_path / "edges.parquet", tmp_path / "own", nodes=tmp_path / "nodes.parquet")
    assert np.load(folder / "edge_index.npy").tolist() == [[1], [0]]


def test_an_empty_cell_is_no_class_of_its_own(tables: Path) -> None:
    """Of text in CSV it is "", of large strings None: unknown; of flags it is refused."""
    import pyarrow as pa
    from pyarrow import parquet

    (tables / "nodes.csv").write_text("node,a,y\nzoe,1,red\nal,1,\nkim,1,blue\n")
    names, x = pa.array(["zoe", "al", "kim"]), pa.array([1, 1, 1])
    for number, y in enumerate([pa.array(["red", None, "blue"], pa.large_string()), pa.array([True, None, False])]):
        parquet.write_table(pa.table({"node": names, "a": x, "y": y}), tables / f"nodes{number}.parquet")
    for name in ("nodes.csv", "nodes0.parquet"):
        folder = ug.from_edges(tables / "edges.csv", tables / f"of {name}", nodes=tables / name)
        assert _load(folder).labels.tolist() == [1, -1, 0]
        assert ug.read_names(folder).classes == ["blue", "red"]
    with pytest.raises(InputError, match="column y has 1 empty cells"):
        ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes1.parquet")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([*(f"{number / 7:.3f}" for number in range(50)), "?"], "y of node 50 is '\\?', beside numbers such as"),
        (["1,5", "2,5", ""], "y of node 0 is '1,5', as text: write numbers to predict as 1.5"),
        (["12 %", "a", "a"], "y of node 1 is 'a', beside numbers such as '12 %'"),
        ([*map(str, range(50)), "abc"], "y of node 50 is 'abc', beside numbers"),
        (["a", 1, None], "y of node 1 is 1, but other labels are text"),
        (np.array(["a", 2.5], object), "y of node 1 is 2.5, but other labels are text"),
    ],
)
def test_numbers_in_text_are_no_classes(y: Any, words: str, tmp_path: Path) -> None:
    """A single cell that is no number makes text of a whole column."""
    ends = np.zeros((2, 1), np.int64)
    with pytest.raises(InputError, match=words):
        ug.from_edges(ends, tmp_path / "own", x=np.ones((len(y), 1)), y=y)


@pytest.mark.parametrize(
    ("y", "classes", "labels"),
    [
        (["1", "2", "K", "K", "1", "2"], ["1", "2", "K"], [0, 1, 2, 2, 0, 1]),
        (["red", float("nan"), "blue", None], ["blue", "red"], [1, -1, 0, -1]),
        (np.array(["red", None, "blue"], object), ["blue", "red"], [1, -1, 0]),
        ([True, False, True], None, [1, 0, 1]),
    ],
    ids=["grades", "list", "objects", "bool"],
)
def test_what_is_no_text_among_labels_is_unknown(y: Any, classes: Any, labels: list[int], tmp_path: Path) -> None:
    """None and NaN, as pandas writes them; 1-D bool are two classes."""
    folder = ug.from_edges(np.zeros((2, 1), np.int64), tmp_path / "own", x=np.ones((len(y), 1)), y=y)
    assert ug.read_names(folder).classes == classes
    assert (_load(folder).labels.tolist(), task_of(_load(folder).labels)) == (labels, Task.CLASSES)


def test_attributes_of_networkx_may_be_unknown_but_masks_are_flags(tmp_path: Path) -> None:
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: "red", 1: float("nan"), 2: "blue"}, "y")
    nx.set_node_attributes(graph, {0: 1, 2: np.True_}, "train_mask")
    folder = ug.from_networkx(graph, tmp_path / "own", x=np.eye(3))
    assert (_load(folder).labels.tolist(), _load(folder).split.tolist()) == ([1, -1, 0], [TRAIN, NONE, TRAIN])
    for wrong in ("False", float("nan"), 2):
        nx.set_node_attributes(graph, {1: wrong}, "train_mask")
        with pytest.raises(InputError, match=f"node 1 has train_mask={wrong!r}: expected True or False"):
            ug.from_networkx(graph, tmp_path / "other", x=np.eye(3))


def test_decimals_of_a_database_are_numbers(tables: Path) -> None:
    """Also as names; spans of time are refused, and not text."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = {"node": pa.array([7, 9, 11], pa.decimal128(10, 0)), "a": pa.array([1.5, 2, 3]).cast(pa.decimal128(9, 2))}
    y = pa.array([0.25, None, 0.5]).cast(pa.decimal128(9, 2))
    parquet.write_table(pa.table({**rows, "y": y}), tables / "nodes.parquet")
    (tables / "edges.csv").write_text("source,target\n9,7\n")
    graph = _load(ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.parquet"))
    assert [edge[:2] for edge in _edges(graph)] == [(1, 0)]
    assert np.asarray(graph.features).tolist() == [[1.5], [2], [3]]
    np.testing.assert_array_equal(graph.labels, np.array([0.25, np.nan, 0.5], np.float32))
    parquet.write_table(pa.table({**rows, "y": pa.array([1, 2, 3], pa.duration("s"))}), tables / "nodes.parquet")
    with pytest.raises(InputError, match=r"column y of duration.*spans of time: write their seconds"):
        ug.from_edges(tables / "edges.csv", tables / "other", nodes=tables / "nodes.parquet")


@pytest.mark.parametrize("x", [None, ["age"]])
def test_a_table_of_nodes_needs_no_labels(x: list[str] | None, tables: Path) -> None:
    """As arrays need none: such a graph is for predictions."""
    (tables / "nodes.csv").write_text("node,age\nzoe,30\nal,40\nkim,50\n")
    graph = _load(ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv", x=x))
    assert np.asarray(graph.features).tolist() == [[30], [40], [50]]
    assert graph.labels.tolist() == [-1] * 3


def test_masks_of_0_and_1_in_tables_are_flags(tables: Path) -> None:
    (tables / "nodes.csv").write_text("node,a,y,train_mask,test_mask\nzoe,1,1,1,0\nal,2,0,0,1\nkim,3,1,0,0\n")
    folder = ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv")
    assert _load(folder).split.tolist() == [TRAIN, TEST, NONE]
    (tables / "nodes.csv").write_text("node,a,y,train_mask\nzoe,1,1,1\nal,2,0,2\nkim,3,1,0\n")
    with pytest.raises(InputError, match="train_mask must be bool, not int64: give mask == 1"):
        ug.from_edges(tables / "edges.csv", tables / "other", nodes=tables / "nodes.csv")


def test_names_may_have_line_breaks_in_large_tables_too(tmp_path: Path) -> None:
    """Larger than the megabyte that pyarrow parses at once."""
    count = 60_000
    rows = "".join(f'"a long name\n{node}",1,{node % 2}\n' for node in range(count))
    (tmp_path / "nodes.csv").write_text(f"node,a,y\n{rows}")
    (tmp_path / "edges.csv").write_text(f'source,target\n"a long name\n1","a long name\n{count - 1}"\n')
    folder = ug.from_edges(tmp_path / "edges.csv", tmp_path / "own", nodes=tmp_path / "nodes.csv")
    assert [edge[:2] for edge in _edges(_load(folder))] == [(1, count - 1)]


@pytest.mark.parametrize(
    ("nodes", "edges", "names"),
    [
        (["02134", "10001"], ["02134", "10001"], ["02134", "10001"]),
        (["1e5", "1e6"], ["1e5", "1e6"], ["1e5", "1e6"]),
        (["true", "false"], ["true", "false"], ["true", "false"]),
        (["007", "7"], ["007", "7"], ["007", "7"]),
        (["007", "012"], ["007", "012"], ["007", "012"]),
        (["2020-01-01", "10:00:00"], ["2020-01-01", "10:00:00"], ["2020-01-01", "10:00:00"]),
        (["1", "2", "x"], [" 1", "2"], ["1", "2", "x"]),
        (["1", "2"], ["1", "2"], [1, 2]),
        (["9223372036854775809", "9223372036854775810"],) * 3,
    ],
)
def test_names_in_csv_are_what_is_written(nodes: list[str], edges: list[str], names: list[Any], tmp_path: Path) -> None:
    """Text, unless all are whole numbers."""
    rows = "".join(f"{node},1,{number % 2}\n" for number, node in enumerate(nodes))
    (tmp_path / "nodes.csv").write_text(f"node,a,y\n{rows}")
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges[0]},{edges[1]}\n")
    folder = ug.from_edges(tmp_path / "edges.csv", tmp_path / "own", nodes=tmp_path / "nodes.csv")
    assert ug.read_names(folder).nodes == names
    assert [edge[:2] for edge in _edges(_load(folder))] == [(0, 1)]


@pytest.mark.parametrize("nodes", ["of a table", "of an array", "none"])
def test_ends_that_are_numbers_in_another_form_are_those_numbers(nodes: str, tmp_path: Path) -> None:
    """Pandas writes whole numbers with a fraction where a cell of the column was empty."""
    (tmp_path / "nodes.csv").write_text("node,source,y\n0,0.5,0\n1,1.5,1\n")
    (tmp_path / "edges.csv").write_text("source,target\n0.0,01\n")
    given: dict[str, Any] = {"nodes": tmp_path / "nodes.csv"}
    if nodes != "of a table":
        given = {"x": np.eye(2), "y": np.array([0, 1]), "nodes": np.array([0, 1]) if nodes == "of an array" else None}
    folder = ug.from_edges(tmp_path / "edges.csv", tmp_path / "own", **given)
    assert [edge[:2] for edge in _edges(_load(folder))] == [(0, 1)]


def test_lists_and_dates_of_parquet(tmp_path: Path) -> None:
    """A column of lists stands for several columns; names of another type are text."""
    import pyarrow as pa
    from pyarrow import parquet

    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    edges, nodes = tmp_path / "edges.parquet", tmp_path / "nodes.parquet"
    parquet.write_table(pa.table({"source": days[:1], "target": days[1:]}), edges)
    table = {"node": pa.array(days), "y": [0, 1], "a": [5, 6], "vector": [[1.0, 2.0], [3.0, 4.0]]}
    parquet.write_table(pa.table(table), nodes)
    folder = ug.from_edges(edges, tmp_path / "own", nodes=nodes)
    assert np.asarray(_load(folder).features).tolist() == [[5, 1, 2], [6, 3, 4]]
    assert ug.read_names(folder).nodes == ["2020-01-01", "2020-01-02"]
    for changes, words in (
        ({"vector": [[1.0, 2.0], [3.0]]}, r"column vector of list<.*>: expected numbers, .*lists of one length"),
        ({"y": pa.array([1 << 63, None], pa.uint64())}, "column y of uint64: .*not in range"),
        ({"a": [{"b": 1}, {"b": 2}]}, "column a of struct<"),
        ({"node": [[1], [2]]}, r"nodes are <U21 \(2, 1\)"),
    ):
        parquet.write_table(pa.table({**table, **changes}), nodes)
        with pytest.raises(InputError, match=words) as refusal:
            ug.from_edges(edges, tmp_path / "other", nodes=nodes)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("line", "words"), [
    (b"zo\xe9,30,1", r"nodes\.csv: cannot be read: In CSV column #0: .*invalid UTF8"),
    (b"zoe,30,\xe9", r"nodes\.csv: column y of binary: expected numbers, bool, UTF-8"),
])  # fmt: skip
def test_tables_are_utf_8(line: bytes, words: str, tables: Path) -> None:
    """Latin-1 is named."""
    (tables / "nodes.csv").write_bytes(b"node,age,y\n" + line + b"\nal,40,1\nkim,50,2\n")
    with pytest.raises(InputError, match=words):
        ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": np.ones((3, 2))}, "nodes is a table, so x must be a list of names of its columns"),
        ({"x": "age"}, "nodes is a table, so x must be a list"),
        ({"edge_attr": [[1.0], [2.0]]}, "edges is a table, so edge_attr must be a list of names of its columns"),
    ],
)
def test_beside_a_table_columns_are_named(tables: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv", **given)


def test_other_files_are_no_tables(tables: Path) -> None:
    (tables / "edges.parquet").write_text("no table")
    for name, words in (
        ("edges.txt", "is no table"),
        ("edges.parquet", "cannot be read"),
        ("no.csv", "cannot be read"),
    ):
        with pytest.raises(InputError, match=words):
            ug.from_edges(tables / name, tables / "own", x=X, y=Y)


def test_without_pyarrow_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pip's command."""
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PluginError, match=r"edges\.csv: tables are read by pyarrow: pip install 'unilaunch\[tables\]'"):
        ug.from_edges(tmp_path / "edges.csv", tmp_path / "own", x=X, y=Y)


def test_the_library_is_imported_without_numpy() -> None:
    """And without a framework; the public names are there."""
    program = "import sys, unilaunch_graph as ug; print(*sys.modules); print(*dir(ug))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, names = (set(line.split()) for line in done.stdout.splitlines())
    assert not loaded & {"numpy", "scipy", "torch", "mindspore"}
    assert {"from_edges", "from_networkx", "from_pyg", "from_scipy", "read_names"} <= names
    with pytest.raises(AttributeError, match="no attribute 'from_dgl'"):
        _ = ug.from_dgl
