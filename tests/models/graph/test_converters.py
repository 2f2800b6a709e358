"""Graphs of PyG, networkx, SciPy, arrays and tables become folders that are read as the same graph."""

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
    """Lists, edge features of one dimension, classes in a column, sparse features, values to predict."""
    data.edge_attr, data.y = WEIGHTS.tolist(), data.y[:, None]
    data.x = data.x.to_sparse()
    data.train_mask, data.test_mask = TRAINED.tolist(), TESTED.tolist()
    del data.edge_weight
    graph = _load(ug.from_pyg(data, tmp_path / "own"))
    assert graph.edge_arrays["edge_attr"][:, 0].tolist() == [edge[2] for edge in EDGES]
    assert sp.issparse(graph.features)
    assert graph.features.toarray().tolist() == X.tolist()  # type: ignore[union-attr]
    assert graph.labels.tolist() == Y.tolist()
    assert graph.split.tolist() == [TRAIN, NONE, TEST, NONE]
    data.y = np.array([0.5, 1, 2, 3])
    assert task_of(_load(ug.from_pyg(data, tmp_path / "values")).labels) is Task.REGRESSION


def test_types_of_edges_are_an_array_of_their_own(data: Any, tmp_path: Path) -> None:
    """As `to_homogeneous` and PyG's sets for RGCN have them, also beside features of the edges."""
    data.edge_type = np.arange(6)
    graph = _load(ug.from_pyg(data, tmp_path / "own"))
    types = [(*edge[:2], kind) for edge, kind in zip(_edges(graph), graph.edge_arrays["edge_type"], strict=True)]
    assert sorted(types) == sorted(zip(*np.asarray(ENDS).tolist(), range(6), strict=True))
    data.edge_type = np.arange(5)
    with pytest.raises(InputError, match=r"edge_type must have shape \(6,\), not \(5,\)"):
        ug.from_pyg(data, tmp_path / "unlike")


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
    assert _load(ug.from_scipy(matrix > 0, tmp_path / "plain", x=np.eye(3), y=[0, 1, 1])).weights is None
    for wrong, words in ((kind(np.ones((2, 3))), "expected as many rows as columns"), ("path", "no sparse matrix")):
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
    other = _load(
        ug.from_networkx(graph, tmp_path / "named", node_arrays=["x"], edge_arrays=["kind"], edge_attr="length")
    )
    assert other.edge_arrays["kind"].tolist() == [1, 0]
    assert other.edge_arrays["edge_attr"].tolist() == [[5], [6]]
    assert other.node_arrays["x"][:, 0].tolist() == [98, 97, 99]
    graph.nodes["b"]["short"] = [1, 2]
    graph.nodes["a"]["short"] = graph.nodes["c"]["short"] = [1]
    for wrong, words in (
        ({"edge_attr": ("speed",)}, "the edge from 'b' to 'a' has no attribute 'speed'; it has weight, length"),
        ({"x": "z"}, "node 'b' has no attribute 'z'; it has x, y, train_mask"),
        ({"x": "short"}, "the nodes' 'short' are not all of one length"),
    ):
        with pytest.raises(InputError, match=words):
            ug.from_networkx(graph, tmp_path / "other", **wrong)


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


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Numpy's error about it has no number."""
    refused = refusal_without_space(
        lambda: ug.from_edges([[0], [1]], tmp_path / "own", x=np.ones((2, 1 << 17)), y=[0, 1]), 100_000
    )
    assert "cannot be written: " in refused
    assert "None" not in refused


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
@pytest.mark.parametrize("form", [lambda x: x.requires_grad_(), lambda x: x.to_sparse(), lambda x: x.to_sparse_csc()])
def test_tensors_of_every_kind_become_arrays(form: Any, data: Any, tmp_path: Path) -> None:
    """Of numbers that numpy lacks, with a gradient, sparse."""
    import torch

    half = torch.from_numpy(X).bfloat16()
    weights = torch.from_numpy(WEIGHTS).requires_grad_()
    given: dict[str, Any] = {"edge_weight": weights, "edge_attr": FEATURES, "y": data.y}
    graph = _load(ug.from_edges(data.edge_index, tmp_path / "own", x=form(half.clone()), **given))
    assert _edges(graph) == EDGES
    features: Any = graph.features
    dense = features.toarray() if sp.issparse(features) else np.asarray(features)
    np.testing.assert_array_equal(dense, half.float().numpy())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges": np.array([["a"], ["b"]])}, "the ends of edges are names: give nodes="),
        ({"nodes": ["a", "b"]}, r"nodes are <U1 \(2,\), and the ends of edges int64"),
        ({"nodes": [0, 1, 2, 2]}, "the node 2 is named twice"),
        ({"nodes": [0, 1, 2, 9]}, "edge 1: source 3 is not among the nodes"),
        ({"nodes": [0, 1, 2, 3, 4], "y": None}, "5 names of nodes, but x has 4 rows"),
        ({"y": [0, None, 1, 0]}, "y is not of one type of numbers: give -1 or NaN in place of None"),
        ({"x": X.astype("g")}, "x is of type <f16, which no framework reads: give .astype"),
        ({"edge_weight": WEIGHTS[:5]}, r"edge_weight must have shape \(6,\), not \(5,\)"),
        ({"x": [[1, 2], [3]]}, "x is no array: expected rows of one length"),
        ({"edges": ENDS.T, "nodes": [0, 1, 2, 3]}, r"edges have the shape \(6, 2\); expected \(2, num_edges\)"),
        ({"edges": np.array([[b"\xe9"], [b"b"]]), "nodes": ["a", "b", "c", "d"]}, "edges are bytes beyond ASCII"),
        ({"x": np.ma.masked_greater(X, 1)}, "x has masked values: fill them"),  # type: ignore[no-untyped-call]
        ({"train_mask": [True]}, r"train_mask must have shape \(4,\)"),
        ({"x": np.array([["2020-01-01"]] * 4, "M8[D]")}, r"x must be numbers, not datetime64\[D\]: give seconds: "),
        ({"edge_arrays": {"time": np.array(["a"] * 6)}}, r"edge\.time must be numbers, not <U1"),
        ({"node_arrays": {"year": np.arange(5)}}, r"node\.year must have 4 rows, not the shape \(5,\)"),
        ({"node_arrays": {"../year": np.arange(4)}}, r"the array '\.\./year': expected a name of letters"),
        ({"x": np.full((4, 1), 2**24 + 1)}, "x of node 0 is 16777217 .* float32 rounds: .*node_arrays="),
        ({"x": sp.csr_array(np.full((4, 1), 2**24 + 1))}, "x of node 0 is 16777217 .* float32 rounds"),
        ({"edge_weight": np.arange(6) + 2**40}, "edge_weight of edge 1 is 1099511627777, .* float32 .*edge_arrays="),
    ],
)
def test_from_edges_refuses_what_does_not_fit(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """In one line, with the way out where there is one, and nothing is left."""
    arrays: dict[str, Any] = {"edges": ENDS, "x": X, "y": Y, **changes}
    with pytest.raises(InputError, match=words) as refusal:
        ug.from_edges(arrays.pop("edges"), tmp_path / "own", **arrays)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_arrays_in_another_machines_byte_order_are_turned_round(tmp_path: Path) -> None:
    """FITS and HDF5 have such; a framework reads none."""
    arrays: dict[str, Any] = {"edge_weight": WEIGHTS, "edge_attr": FEATURES, "x": X, "y": Y, "edge_type": ENDS[0]}
    foreign: dict[str, Any] = {
        name: np.asarray(array).astype(np.asarray(array).dtype.newbyteorder(">")) for name, array in arrays.items()
    }
    folder = ug.from_edges(ENDS.astype(">i4"), tmp_path / "own", node_arrays={"time": Y.astype(">f4")}, **foreign)
    part = ug.load(folder, data_dir=tmp_path, framework="torch")
    np.testing.assert_array_equal(part.x, X.astype(np.float32)[part.owned])
    np.testing.assert_array_equal(part.node_arrays["time"], Y[part.owned])
    np.testing.assert_array_equal(part.edge_type, ENDS[0][part.edge_ids])
    np.testing.assert_array_equal(part.edge_weight, WEIGHTS[part.edge_ids].astype(np.float32))


def test_a_graph_without_labels_is_written(tmp_path: Path, data: Any) -> None:
    """By each converter; no label is known then, and no node is to train on."""
    del data.y
    folders = [
        ug.from_edges(ENDS, tmp_path / "edges", x=X, val_mask=TRAINED),
        ug.from_scipy(sp.eye_array(4), tmp_path / "scipy", x=X),
        ug.from_networkx(nx.Graph([(0, 1), (2, 3)]), tmp_path / "networkx", x=X, y=None),
        ug.from_pyg(data, tmp_path / "pyg"),
    ]
    for folder in folders:
        graph = _load(folder)
        assert graph.labels.tolist() == [-1] * 4
        assert graph.split.tolist() == [NONE] * 4


def test_a_folder_that_exists_is_refused_or_replaced(tmp_path: Path) -> None:
    """A graph is replaced if the user says so; a folder that holds more is not."""
    folder = ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, nodes=[0, 1, 2, 3])
    with pytest.raises(InputError, match=r"own: exists already, with other content: .* overwrite=True"):
        ug.from_edges(ENDS, folder, x=X + 1, y=Y, nodes=[0, 1, 2, 3])
    ug.from_edges(ENDS[:, :3], folder, x=X, overwrite=True)
    assert len(_load(folder).indices) == 3
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["edge_index.npy", "own", "x.npy"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="own: holds more than a graph, and is not overwritten"):
        ug.from_edges(ENDS, folder, x=X, overwrite=True)


def test_a_script_converts_its_graph_in_each_run_on_all_ranks(tmp_path: Path) -> None:
    """The same data is written once, by whichever rank is first."""
    folders = on_every_rank(4, lambda _rank, _collectives: ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y))
    written = {path: path.stat().st_ino for path in folders[0].iterdir()}
    ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y)
    ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, overwrite=True)
    assert {path: path.stat().st_ino for path in folders[0].iterdir()} == written
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of nobody, a name that is too long, damaged names; ~ is the user's home, to write and to read."""
    for folder, words in (("~nouser/own", "home directory"), (tmp_path / ("g" * 300), "File name too long")):
        with pytest.raises(InputError, match=f"cannot be written: .*{words}"):
            ug.from_edges(ENDS, folder, x=X, y=Y)
    monkeypatch.setenv("HOME", str(tmp_path))
    ug.from_edges(ENDS, "~/own", x=X, y=Y, nodes=[0, 1, 2, 3])
    assert ug.read_names("~/own").nodes == [0, 1, 2, 3]
    (tmp_path / "own" / "names.json").write_text("[]")
    for name, words in (("none", "no such folder"), ("own", r"names\.json: is damaged")):
        with pytest.raises(InputError, match=words):
            ug.read_names(tmp_path / name)


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


@pytest.mark.parametrize(
    ("edges", "nodes", "given", "words"),
    [
        ("from,to\na,b\n", NODE_LINES, {}, r"edges\.csv: has no column source, target; it has from, to"),
        ("source,target\nzoe,max\n", NODE_LINES, {}, "edge 0: target max is not among the nodes"),
        ("source,target,weight\nzoe,al,\n", NODE_LINES, {}, "column weight has 1 empty cells"),
        (EDGE_LINES, NODE_LINES.replace("50", "old"), {}, "column age holds text, not numbers: row 3 has 'old'"),
        (EDGE_LINES, NODE_LINES.replace("2.5,false", "?,false"), {}, r"y of node 2 is '\?', beside numbers"),
        (EDGE_LINES, NODE_LINES.replace("size", "age"), {}, r"nodes\.csv: has the column age twice"),
        (EDGE_LINES, NODE_LINES.replace("true", "2").replace("false", "1"), {}, "train_mask must be bool"),
        (EDGE_LINES, NODE_LINES, {"edge_attr": ["kg"]}, "has no column kg; it has source, target, weight, km"),
        (EDGE_LINES, NODE_LINES, {"y": [1, 2, 3]}, "nodes is a table, so y must be its columns"),
        (EDGE_LINES, NODE_LINES, {"edge_weight": [1, 2, 3]}, "edges is a table, so edge_weight must be its columns"),
        (EDGE_LINES, NODE_LINES, {"x": "age"}, "nodes is a table, so x must be a list"),
        (EDGE_LINES, b"node,age,y\nzo\xe9,30,1\n", {}, r"nodes\.csv: cannot be read: .*invalid UTF8"),
        (EDGE_LINES, b"node,age,y\nzoe,30,\xe9\n", {}, r"nodes\.csv: column y of binary: expected .*UTF-8"),
    ],
)
def test_faults_of_tables_are_named(
    tables: Path, edges: str, nodes: str | bytes, given: dict[str, Any], words: str
) -> None:  # fmt: skip
    """File and column."""
    (tables / "edges.csv").write_text(edges)
    (tables / "nodes.csv").write_bytes(nodes if isinstance(nodes, bytes) else nodes.encode())
    with pytest.raises(InputError, match=words) as refusal:
        ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv", **given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "words"), [("edges.txt", "is no table"), ("edges.parquet", "cannot be read"), ("no.csv", "cannot be read")]
)
def test_other_files_are_no_tables(name: str, words: str, tables: Path) -> None:
    """By their ending or their content."""
    (tables / "edges.parquet").write_text("no table")
    with pytest.raises(InputError, match=words):
        ug.from_edges(tables / name, tables / "own", x=X, y=Y)


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
        (["1,5", "2,5", ""], "y of node 0 is '1,5', as text: write numbers to predict as 1.5"),
        (["12 %", "a", "a"], "y of node 1 is 'a', beside numbers such as '12 %'"),
        ([*map(str, range(50)), "abc"], "y of node 50 is 'abc', beside numbers"),
        (["a", 1, None], "y of node 1 is 1, but other labels are text"),
    ],
)
def test_numbers_in_text_are_no_classes(y: Any, words: str, tmp_path: Path) -> None:
    """A single cell that is no number makes text of a whole column."""
    with pytest.raises(InputError, match=words):
        ug.from_edges(np.zeros((2, 1), np.int64), tmp_path / "own", x=np.ones((len(y), 1)), y=y)


@pytest.mark.parametrize(
    ("y", "classes", "labels"),
    [
        (["1", "2", "K", "K", "1", "2"], ["1", "2", "K"], [0, 1, 2, 2, 0, 1]),
        (["red", float("nan"), "blue", None], ["blue", "red"], [1, -1, 0, -1]),
        ([True, False, True], None, [1, 0, 1]),
    ],
    ids=["grades", "list", "bool"],
)
def test_what_is_no_text_among_labels_is_unknown(y: Any, classes: Any, labels: list[int], tmp_path: Path) -> None:
    """None and NaN, as pandas writes them; 1-D bool are two classes."""
    folder = ug.from_edges(np.zeros((2, 1), np.int64), tmp_path / "own", x=np.ones((len(y), 1)), y=y)
    assert ug.read_names(folder).classes == classes
    assert (_load(folder).labels.tolist(), task_of(_load(folder).labels)) == (labels, Task.CLASSES)


def test_a_table_of_nodes_needs_no_labels(tables: Path) -> None:
    """As arrays need none: such a graph is for predictions. The features may be chosen."""
    (tables / "nodes.csv").write_text("node,age,size\nzoe,30,1\nal,40,2\nkim,50,3\n")
    for x, expected in ((None, [[30, 1], [40, 2], [50, 3]]), (["age"], [[30], [40], [50]])):
        graph = _load(ug.from_edges(tables / "edges.csv", tables / f"of {x}", nodes=tables / "nodes.csv", x=x))
        assert np.asarray(graph.features).tolist() == expected
        assert graph.labels.tolist() == [-1] * 3


def test_masks_of_0_and_1_in_tables_are_flags(tables: Path) -> None:
    """As spreadsheets write them."""
    (tables / "nodes.csv").write_text("node,a,y,train_mask,test_mask\nzoe,1,1,1,0\nal,2,0,0,1\nkim,3,1,0,0\n")
    folder = ug.from_edges(tables / "edges.csv", tables / "own", nodes=tables / "nodes.csv")
    assert _load(folder).split.tolist() == [TRAIN, TEST, NONE]


@pytest.mark.parametrize(
    ("nodes", "edges", "names"),
    [
        (["02134", "10001"], ["02134", "10001"], ["02134", "10001"]),
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


@pytest.mark.parametrize("nodes", ["of a table", "none"])
def test_ends_that_are_numbers_in_another_form_are_those_numbers(nodes: str, tmp_path: Path) -> None:
    """Pandas writes whole numbers with a fraction where a cell of the column was empty."""
    (tmp_path / "nodes.csv").write_text("node,source,y\n0,0.5,0\n1,1.5,1\n")
    (tmp_path / "edges.csv").write_text("source,target\n0.0,01\n")
    given: dict[str, Any] = {"nodes": tmp_path / "nodes.csv"}
    if nodes == "none":
        given = {"x": np.eye(2), "y": np.array([0, 1])}
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
        ({"a": [{"b": 1}, {"b": 2}]}, "column a of struct<"),
    ):
        parquet.write_table(pa.table({**table, **changes}), nodes)
        with pytest.raises(InputError, match=words) as refusal:
            ug.from_edges(edges, tmp_path / "other", nodes=nodes)
        assert "\n" not in str(refusal.value)


def test_without_pyarrow_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pip's command."""
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PluginError, match=r"edges\.csv: tables are read by pyarrow: pip install 'unilaunch\[tables\]'"):
        ug.from_edges(tmp_path / "edges.csv", tmp_path / "own", x=X, y=Y)


def test_the_library_is_imported_without_numpy() -> None:
    """And without a framework."""
    program = "import sys, unilaunch_graph as ug; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & {"numpy", "scipy", "torch", "mindspore"}
    with pytest.raises(AttributeError, match="no attribute 'from_dgl'"):
        _ = ug.from_dgl
