"""Graphs of PyG, networkx, SciPy, arrays and tables become folders that are read as the same graph."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from pyarrow import csv, parquet
from torch_geometric.data import Data, HeteroData

import unilaunch_graph as ug
from full_disk import refusal_without_space
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError, PluginError
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Graph
from unilaunch_graph.data.labels import Task, task_of
from unilaunch_graph.data.sources import open_dataset

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
ARRAYS: dict[str, Any] = {"edge_weight": WEIGHTS, "edge_attr": FEATURES, "x": X, "y": Y}


def _load(folder: Path) -> Any:
    return open_dataset(str(folder), None, None, 0, None).load()


def _edges(graph: Graph) -> list[tuple[Any, ...]]:
    targets = np.repeat(np.arange(graph.num_nodes), graph.degrees).tolist()
    weights = [1] * len(targets) if graph.weights is None else graph.weights.tolist()
    features = [tuple(row) for row in graph.edge_arrays.get("edge_attr", np.zeros((len(targets), 0))).tolist()]
    return list(zip(graph.indices.tolist(), targets, weights, features, strict=True))


def _dense(features: Any) -> list[list[float]]:
    rows: list[list[float]] = (features.toarray() if sp.issparse(features) else np.asarray(features)).tolist()
    return rows


@pytest.fixture
def data() -> Any:
    """PyG's container of the graph above."""
    tensor = torch.as_tensor
    return Data(
        x=tensor(X), edge_index=tensor(ENDS), edge_weight=tensor(WEIGHTS), edge_attr=tensor(FEATURES), y=tensor(Y),
        train_mask=tensor(TRAINED), test_mask=tensor(TESTED),
    )  # fmt: skip


def test_from_pyg(data: Any, tmp_path: Path) -> None:
    """All that the container holds, lists and columns too; a mask that it lacks is empty; types are an array."""
    folder = ug.from_pyg(data, tmp_path / "own")
    assert folder == tmp_path / "own"
    assert ug.read_names(folder) == (None, None)
    graph = _load(folder)
    assert _edges(graph) == EDGES
    data.edge_attr, data.y, data.x = WEIGHTS.tolist(), data.y[:, None], data.x.to_sparse()
    data.train_mask, data.test_mask, data.edge_type = TRAINED.tolist(), TESTED.tolist(), np.arange(6)
    del data.edge_weight
    other = _load(ug.from_pyg(data, tmp_path / "other"))
    assert other.edge_arrays["edge_attr"][:, 0].tolist() == [edge[2] for edge in EDGES]
    assert sp.issparse(other.features)
    types = [(*edge[:2], kind) for edge, kind in zip(_edges(other), other.edge_arrays["edge_type"], strict=True)]
    assert sorted(types) == sorted(zip(*ENDS.tolist(), range(6), strict=True))
    for one in (graph, other):
        assert _dense(one.features) == X.tolist()
        assert one.labels.tolist() == Y.tolist()
        assert one.split.tolist() == [TRAIN, NONE, TEST, NONE]
    data.y = np.array([0.5, 1, 2, 3])
    assert task_of(_load(ug.from_pyg(data, tmp_path / "values")).labels) is Task.REGRESSION


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor|invariant):UserWarning")
@pytest.mark.parametrize("name", ["edge_index", "adj_t"])
def test_from_pyg_with_edges_as_a_matrix(name: str, data: Any, tmp_path: Path) -> None:
    """As PyG's layers take it: rows are targets. Values that are not 1 are weights."""
    once = torch.tensor(ENDS[::-1, :5].copy())
    matrix = torch.sparse_coo_tensor(once, torch.tensor(WEIGHTS[:5]), (4, 4)).coalesce()
    given = matrix if name == "adj_t" else matrix.to_sparse_csr()
    graph = _load(ug.from_pyg(Data(x=data.x, y=data.y, **{name: given}), tmp_path / "own", split=(1, 0, 0)))
    assert _edges(graph) == [(*edge[:3], ()) for edge in EDGES[:5]]


def test_from_pyg_refuses_what_it_cannot_write(data: Any, tmp_path: Path) -> None:
    """By name: several kinds of nodes, several splits, types of other edges, no edges."""
    for change, words in (
        ({"train_mask": data.train_mask[:, None].repeat(1, 10)}, "train_mask has 10 splits: choose one"),
        ({"edge_type": np.arange(5)}, r"edge_type must have shape \(6,\), not \(5,\)"),
        ({"edge_index": None}, "has neither edge_index nor adj_t"),
    ):
        with pytest.raises(InputError, match=words):
            ug.from_pyg(Data(**{**data.to_dict(), **change}), tmp_path / "own")
    with pytest.raises(InputError, match=r"data\.to_homogeneous\(\)"):
        ug.from_pyg(HeteroData(), tmp_path / "own")
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
        graph.add_node(name, x=[ord(name), 1.0], y=color, train_mask=name == "a", short=[1] * (1 + (name == "b")))
    graph.add_edge("b", "a", weight=2.0, length=5, kind=1)
    graph.add_edge("c", "a", length=6, kind=0)
    folder = ug.from_networkx(graph, tmp_path / "own", edge_attr=("length", "kind"))
    found = _load(folder)
    assert _edges(found) == [(0, 1, 2, (5, 1)), (2, 1, 1, (6, 0))]
    assert found.features[:, 0].tolist() == [98, 97, 99]
    assert found.labels.tolist() == [1, 0, 1]
    assert found.split.tolist() == [NONE, TRAIN, NONE]
    assert ug.read_names(folder) == (["b", "a", "c"], ["blue", "red"])
    arrays: dict[str, Any] = {"node_arrays": ["x"], "edge_arrays": ["kind"], "edge_attr": "length"}
    other = _load(ug.from_networkx(graph, tmp_path / "named", **arrays))
    assert other.edge_arrays["kind"].tolist() == [1, 0]
    assert other.edge_arrays["edge_attr"].tolist() == [[5], [6]]
    assert other.node_arrays["x"][:, 0].tolist() == [98, 97, 99]
    for wrong, words in (
        ({"edge_attr": ("speed",)}, "the edge from 'b' to 'a' has no attribute 'speed'; it has weight, length"),
        ({"x": "z"}, "node 'b' has no attribute 'z'; it has x, y, train_mask"),
        ({"x": "short"}, "the nodes' 'short' are not all of one length"),
    ):
        with pytest.raises(InputError, match=words):
            ug.from_networkx(graph, tmp_path / "other", **wrong)


def test_from_networkx_of_the_karate_club(tmp_path: Path) -> None:
    """An undirected graph has each edge in both directions, a loop once; its names are numbers already."""
    club = nx.karate_club_graph()
    folder = ug.from_networkx(club, tmp_path / "club", x=np.eye(34), y="club")
    graph = _load(folder)
    assert (len(graph.indices), graph.is_directed, graph.num_classes) == (2 * club.number_of_edges(), False, 2)
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
    wanted = x.toarray().tolist()
    features = _load(ug.from_edges([[0], [1]], tmp_path / "own", x=x, y=[0, 1])).features
    assert isinstance(features, sp.csr_array)
    assert _dense(features) == _dense(x) == wanted


def test_from_edges_of_arrays(tmp_path: Path) -> None:
    """As they are; names are numbered in the order of nodes=."""
    names = np.array(["zoe", "al", "kim", "bo"])
    for ends, nodes in ((ENDS, None), (names[ENDS], names.tolist()), (ENDS + 10, [10, 11, 12, 13])):
        folder = ug.from_edges(ends, tmp_path / f"of {nodes}", nodes=nodes, **ARRAYS)
        assert _edges(_load(folder)) == EDGES
        assert ug.read_names(folder).nodes == nodes


def test_a_graph_may_have_no_edges(tmp_path: Path) -> None:
    """An empty list is one of floats, and an empty column of a table has no type."""
    (tmp_path / "edges.csv").write_text("source,target,weight\n")
    for number, edges in enumerate(([[], []], np.zeros((2, 0), np.int32), tmp_path / "edges.csv")):
        for nodes in (None, ["a", "b", "c", "d"]):
            folder = ug.from_edges(edges, tmp_path / f"{number}{nodes}", x=X, y=Y, nodes=nodes)
            assert len(_load(folder).indices) == 0


@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support")
@pytest.mark.parametrize("form", [lambda x: x.requires_grad_(), lambda x: x.to_sparse(), lambda x: x.to_sparse_csc()])
def test_tensors_of_every_kind_become_arrays(form: Any, data: Any, tmp_path: Path) -> None:
    """Of numbers that numpy lacks, with a gradient, sparse."""
    half = torch.from_numpy(X).bfloat16()
    given = {"edge_weight": data.edge_weight.requires_grad_(), "edge_attr": FEATURES, "y": data.y}
    graph = _load(ug.from_edges(data.edge_index, tmp_path / "own", x=form(half.clone()), **given))
    assert _edges(graph) == EDGES
    assert _dense(graph.features) == half.float().tolist()


def _labels(*y: Any) -> dict[str, Any]:
    return {"edges": np.zeros((2, 1), np.int64), "x": np.ones((len(y), 1)), "y": [*y]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges": np.array([["a"], ["b"]])}, "the ends of edges are names: give nodes="),
        ({"edges": []}, r"edge_index must have shape \(2, any\)"),
        ({"nodes": ["a", "b"]}, r"nodes are <U1 \(2,\), and the ends of edges int64"),
        ({"nodes": [0, 1, 2, 2]}, "the node 2 is named twice"),
        ({"nodes": [0, 1, 2, 9]}, "edge 1: source 3 is not among the nodes"),
        ({"nodes": [0, 1, 2, 3, 4], "y": None}, "5 names of nodes, but x has 4 rows"),
        ({"y": [0, None, 1, 0]}, "y is not of one type of numbers: give -1 or NaN"),
        ({"x": X.astype("g")}, "x is of type <f16, which no framework reads: give .astype"),
        ({"edge_weight": WEIGHTS[:5]}, r"edge_weight must have shape \(6,\), not \(5,\)"),
        ({"x": [[1, 2], [3]]}, "x is no array: expected rows of one length"),
        ({"edges": ENDS.T, "nodes": [0, 1, 2, 3]}, r"\(6, 2\); expected \(2, num_edges\)"),
        ({"edges": np.array([[b"\xe9"], [b"b"]]), "nodes": ["a", "b", "c", "d"]}, "edges are bytes beyond ASCII"),
        ({"x": np.ma.masked_greater(X, 1)}, "x has masked values: fill them"),  # type: ignore[no-untyped-call]
        ({"train_mask": [True]}, r"train_mask must have shape \(4,\)"),
        ({"x": np.array([["2020-01-01"]] * 4, "M8[D]")}, r"x must be numbers, not datetime64\[D\]: give seconds: "),
        ({"edge_arrays": {"time": np.array(["a"] * 6)}}, r"edge\.time must be numbers, not <U1"),
        ({"edge_arrays": ["time"]}, "edge_arrays: expected arrays by name"),
        ({"node_arrays": {"year": np.arange(5)}}, r"node\.year must have 4 rows, not the shape \(5,\)"),
        ({"node_arrays": {"../year": np.arange(4)}}, r"the array '\.\./year': expected a name of letters"),
        ({"x": np.full((4, 1), 2**24 + 1)}, "x of node 0 is 16777217 .* float32 rounds: .*node_arrays="),
        ({"x": sp.csr_array(np.full((4, 1), 2**24 + 1))}, "x of node 0 is 16777217 .* float32 rounds"),
        ({"edge_weight": np.arange(6) + 2**40}, "edge_weight of edge 1 is 1099511627777, .* float32 .*edge_arrays="),
        (_labels("1,5", "2,5", ""), "y of node 0 is '1,5', as text: .* 1.5"),
        (_labels("12 %", "a", "a"), "y of node 1 is 'a', beside numbers such as '12 %'"),
        (_labels(*map(str, range(50)), "abc"), "y of node 50 is 'abc', beside numbers"),
        (_labels("a", 1, None), "y of node 1 is 1, but other labels are text"),
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
    foreign: dict[str, Any] = {
        name: array.astype(array.dtype.newbyteorder(">")) for name, array in (ARRAYS | {"edge_type": ENDS[0]}).items()
    }
    folder = ug.from_edges(ENDS.astype(">i4"), tmp_path / "own", node_arrays={"time": Y.astype(">f4")}, **foreign)
    part = ug.load(folder, data_dir=tmp_path, framework="torch")
    np.testing.assert_array_equal(part.x, X[part.owned])
    np.testing.assert_array_equal(part.node_arrays["time"], Y[part.owned])
    np.testing.assert_array_equal(part.edge_type, ENDS[0][part.edge_ids])
    np.testing.assert_array_equal(part.edge_weight, WEIGHTS[part.edge_ids].astype(np.float32))


def test_a_graph_without_labels_is_written(tmp_path: Path, data: Any) -> None:
    """By each converter; no label is known then, and no node is to train on."""
    del data.y
    for folder in (
        ug.from_edges(ENDS, tmp_path / "edges", x=X, val_mask=TRAINED),
        ug.from_scipy(sp.eye_array(4), tmp_path / "scipy", x=X),
        ug.from_networkx(nx.Graph([(0, 1), (2, 3)]), tmp_path / "networkx", x=X, y=None),
        ug.from_pyg(data, tmp_path / "pyg"),
    ):
        graph = _load(folder)
        assert (graph.labels.tolist(), graph.split.tolist()) == ([-1] * 4, [NONE] * 4)


def test_a_folder_that_exists_is_refused_or_replaced(tmp_path: Path) -> None:
    """A graph is replaced if the user says so; a folder that holds more is not."""
    folder = ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, nodes=[0, 1, 2, 3])
    with pytest.raises(InputError, match=r"own: exists already, .* overwrite=True"):
        ug.from_edges(ENDS, folder, x=X + 1, y=Y, nodes=[0, 1, 2, 3])
    ug.from_edges(ENDS[:, :3], folder, x=X, overwrite=True)
    assert len(_load(folder).indices) == 3
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["edge_index.npy", "own", "x.npy"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="own: holds more than a graph"):
        ug.from_edges(ENDS, folder, x=X, overwrite=True)


def test_a_script_converts_its_graph_in_each_run_on_all_ranks(tmp_path: Path) -> None:
    """The same data is written once, by whichever rank is first."""
    folders = on_every_rank(4, lambda _rank, _collectives: ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y))
    written = {path: path.stat().st_ino for path in folders[0].iterdir()}
    for overwrite in (False, True):
        ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, overwrite=overwrite)
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


def _from_tables(
    folder: Path, edges: str = EDGE_LINES, nodes: str | bytes | None = NODE_LINES, **given: Any
) -> Path:  # fmt: skip
    """Write the tables as CSV, and convert them."""
    (folder / "edges.csv").write_text(edges)
    if nodes is not None:
        (folder / "nodes.csv").write_bytes(nodes if isinstance(nodes, bytes) else nodes.encode())
        given["nodes"] = folder / "nodes.csv"
    return ug.from_edges(folder / "edges.csv", folder / "own", **given)


def _from_parquet(folder: Path, edges: Any, nodes: Any) -> Path:
    parquet.write_table(edges, folder / "edges.parquet")
    parquet.write_table(nodes, folder / "nodes.parquet")
    return ug.from_edges(folder / "edges.parquet", folder / "own", nodes=folder / "nodes.parquet", overwrite=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_from_edges_of_tables(tmp_path: Path, suffix: str) -> None:
    """Names, weights, chosen columns; an empty cell of y is an unknown value."""
    for name, lines in (("edges", EDGE_LINES), ("nodes", NODE_LINES)):
        (tmp_path / f"{name}.csv").write_text(lines)
        parquet.write_table(csv.read_csv(tmp_path / f"{name}.csv"), tmp_path / f"{name}.parquet")
    edges, nodes = tmp_path / f"edges.{suffix}", str(tmp_path / f"nodes.{suffix}")
    folder = ug.from_edges(edges, tmp_path / "own", nodes=nodes, edge_attr=["km"])
    graph = _load(folder)
    assert _edges(graph) == [(0, 1, 1.5, (3,)), (2, 1, 2, (4,)), (0, 2, 1, (5,))]
    assert _dense(graph.features) == [[30, 1.5], [40, 2.5], [50, 3.5]]
    np.testing.assert_array_equal(graph.labels, np.array([0.5, np.nan, 2.5], np.float32))
    assert graph.split.tolist() == [TRAIN, NONE, NONE]
    assert ug.read_names(folder).nodes == ["zoe", "al", "kim"]


def _numbered(name: str) -> str:
    """Return the nodes as `DataFrame.to_csv` writes them, with the index in a column of its own."""
    head, *lines = NODE_LINES.splitlines()
    return "\n".join([f"{name},{head}", *(f"{number},{line}" for number, line in enumerate(lines)), ""])


def _ends(graph: Graph) -> list[tuple[Any, ...]]:
    return [edge[:2] for edge in _edges(graph)]


WITHOUT_LABELS = "node,age,size\nzoe,30,1\nal,40,2\nkim,50,3\n"
TIMED: dict[str, Any] = {
    "edges": EDGE_LINES.replace("km", "time"),
    "nodes": "node,a,id\nzoe,0.5,16777217\nal,4,16777219\nkim,5,7\n",
}
#: Tables, what is looked at, and what it is.
TABLES: dict[str, tuple[dict[str, Any], Callable[[Any], Any], Any]] = {
    "index without a name": (
        {"nodes": _numbered("")}, lambda graph: _dense(graph.features), [[30, 1.5], [40, 2.5], [50, 3.5]]
    ),
    "index as pandas reads it": (
        {"nodes": _numbered("Unnamed: 0")}, lambda graph: _dense(graph.features), [[30, 1.5], [40, 2.5], [50, 3.5]]
    ),
    "an array of edges": (
        TIMED | {"edge_arrays": ["time"], "node_arrays": ["id"]},
        lambda graph: graph.edge_arrays["time"].tolist(), [3, 4, 5],
    ),
    "an array of nodes, which float32 would round": (
        TIMED | {"node_arrays": ["id"]},
        lambda graph: (graph.node_arrays["id"].tolist(), graph.num_features), ([2**24 + 1, 2**24 + 3, 7], 1),
    ),
    "no labels": ({"nodes": WITHOUT_LABELS}, lambda graph: graph.labels.tolist(), [-1] * 3),
    "chosen features": (
        {"nodes": WITHOUT_LABELS, "x": ["age"]}, lambda graph: _dense(graph.features), [[30], [40], [50]]
    ),
    "masks of 0 and 1": (
        {"nodes": "node,a,y,train_mask,test_mask\nzoe,1,1,1,0\nal,2,0,0,1\nkim,3,1,0,0\n"},
        lambda graph: graph.split.tolist(), [TRAIN, TEST, NONE],
    ),
    "an empty class": (
        {"nodes": "node,a,y\nzoe,1,red\nal,1,\nkim,1,blue\n"}, lambda graph: graph.labels.tolist(), [1, -1, 0]
    ),
    "ends with a fraction": (
        {"edges": "source,target\n0.0,01\n", "nodes": "node,a,y\n0,0.5,0\n1,1.5,1\n"}, _ends, [(0, 1)]
    ),
    "ends with a fraction, no table of nodes": (
        {"edges": "source,target\n0.0,01\n", "nodes": None, "x": np.eye(2), "y": [0, 1]}, _ends, [(0, 1)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read(name: str, tmp_path: Path) -> None:
    """As pandas and spreadsheets write them."""
    given, look, expected = TABLES[name]
    assert look(_load(_from_tables(tmp_path, **given))) == expected


@pytest.mark.parametrize(
    ("nodes", "edges", "names"),
    [
        (["02134", "10001"], ["02134", "10001"], ["02134", "10001"]),
        (["2020-01-01", "10:00:00"], ["2020-01-01", "10:00:00"], ["2020-01-01", "10:00:00"]),
        (["1", "2", "x"], [" 1", "2"], ["1", "2", "x"]),
        (["1", "2"], ["1", "2"], [1, 2]),
        (["9223372036854775809", "9223372036854775810"],) * 3,
    ],
)
def test_names_in_csv_are_what_is_written(nodes: list[str], edges: list[str], names: list[Any], tmp_path: Path) -> None:
    """Text, unless all are whole numbers."""
    rows = "".join(f"{node},1,{number % 2}\n" for number, node in enumerate(nodes))
    folder = _from_tables(tmp_path, f"source,target\n{edges[0]},{edges[1]}\n", f"node,a,y\n{rows}")
    assert ug.read_names(folder).nodes == names
    assert _ends(_load(folder)) == [(0, 1)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges": "from,to\na,b\n"}, r"edges\.csv: has no column source, target; it has from, to"),
        ({"edges": "source,target\nzoe,max\n"}, "edge 0: target max is not among the nodes"),
        ({"edges": "source,target,weight\nzoe,al,\n"}, "column weight has 1 empty cells"),
        ({"nodes": NODE_LINES.replace("50", "old")}, "column age holds text, not numbers: row 3 has 'old'"),
        ({"nodes": NODE_LINES.replace("2.5,false", "?,false")}, r"y of node 2 is '\?', beside numbers"),
        ({"nodes": NODE_LINES.replace("size", "age")}, r"nodes\.csv: has the column age twice"),
        ({"nodes": NODE_LINES.replace("true", "2").replace("false", "1")}, "train_mask must be bool"),
        ({"nodes": TIMED["nodes"]}, r"id of node 0 is 16777217, which float32 rounds: .*node_arrays=\['id'\]"),
        ({"edge_attr": ["kg"]}, "has no column kg; it has source, target, weight, km"),
        ({"y": [1, 2, 3]}, "nodes is a table, so y must be its columns"),
        ({"edge_weight": [1, 2, 3]}, "edges is a table, so edge_weight must be its columns"),
        ({"x": "age"}, "nodes is a table, so x must be a list"),
        ({"nodes": b"node,age,y\nzo\xe9,30,1\n"}, r"nodes\.csv: cannot be read: .*invalid UTF8"),
        ({"nodes": b"node,age,y\nzoe,30,\xe9\n"}, r"nodes\.csv: column y of binary: expected .*UTF-8"),
    ],
)
def test_faults_of_tables_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """File and column."""
    with pytest.raises(InputError, match=words) as refusal:
        _from_tables(tmp_path, **changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "words"), [("edges.txt", "is no table"), ("edges.parquet", "cannot be read"), ("no.csv", "cannot be read")]
)
def test_other_files_are_no_tables(name: str, words: str, tmp_path: Path) -> None:
    """By their ending or their content."""
    (tmp_path / "edges.parquet").write_text("no table")
    with pytest.raises(InputError, match=words):
        ug.from_edges(tmp_path / name, tmp_path / "own", x=X, y=Y)


@pytest.mark.parametrize(
    "kinds", [("int64", "int64", "uint64"), ("int64", "uint64", "uint64"), ("uint64", "int64", "int64")]
)
def test_large_numbers_are_no_other_nodes(kinds: tuple[str, str, str], tmp_path: Path) -> None:
    """Numpy compares and joins int64 and uint64 as float64, in which the two are equal."""
    columns = [2**53, 2**53 + 1, 7], [2**53 + 1], [2**53]
    node, source, target = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    nodes = pa.table({"node": node, "a": [1, 2, 3], "y": [0, 1, 0]})
    folder = _from_parquet(tmp_path, pa.table({"source": source, "target": target}), nodes)
    assert np.load(folder / "edge_index.npy").tolist() == [[1], [0]]


def test_columns_of_parquet(tmp_path: Path) -> None:
    """A list stands for several columns; names of another type are text; an empty class is unknown."""
    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    edges = pa.table({"source": days[:1], "target": days[1:]})
    columns: dict[str, Any] = {"node": pa.array(days), "y": [0, 1], "a": [5, 6], "vector": [[1.0, 2.0], [3.0, 4.0]]}
    folder = _from_parquet(tmp_path, edges, pa.table(columns))
    assert _dense(_load(folder).features) == [[5, 1, 2], [6, 3, 4]]
    assert ug.read_names(folder).nodes == ["2020-01-01", "2020-01-02"]
    folder = _from_parquet(tmp_path, edges, pa.table(columns | {"y": pa.array(["red", None], pa.large_string())}))
    assert _load(folder).labels.tolist() == [0, -1]
    for changes, words in (
        ({"vector": [[1.0, 2.0], [3.0]]}, r"column vector of list<.*>: expected numbers, .*lists of one length"),
        ({"a": [{"b": 1}, {"b": 2}]}, "column a of struct<"),
        ({"y": [True, None]}, "column y has 1 empty cells"),
    ):
        with pytest.raises(InputError, match=words) as refusal:
            _from_parquet(tmp_path, edges, pa.table(columns | changes))
        assert "\n" not in str(refusal.value)


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


def test_without_pyarrow_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pip's command."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PluginError, match=r"\.csv: .* pip install 'unilaunch\[tables\]'"):
        _from_tables(tmp_path)


def test_the_library_is_imported_without_numpy() -> None:
    """And without a framework."""
    program = "import sys, unilaunch_graph as ug; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & {"numpy", "scipy", "torch", "mindspore"}
    with pytest.raises(AttributeError, match="no attribute 'from_dgl'"):
        _ = ug.from_dgl
