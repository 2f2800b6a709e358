"""Graphs of PyG, networkx, SciPy, arrays and tables become folders that are read as the same graph."""

import re
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
from graphs_by_hand import edges_of, read_graph
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL
from unilaunch_graph.data.labels import Task, task_of

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
#: What PyG's container of the graph above is made of.
GIVEN: dict[str, Any] = {"edge_index": ENDS, **ARRAYS, "train_mask": TRAINED, "test_mask": TESTED}


def _seen(folder: Path) -> dict[str, Any]:
    """Return what a folder's graph consists of, as lists."""
    graph = read_graph(folder)
    x = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    arrays = {"x": x, "y": graph.labels, "split": graph.split, **graph.node_arrays, **graph.edge_arrays}
    lists: dict[str, Any] = {name: array.tolist() for name, array in arrays.items()}
    edges = edges_of(graph)
    return lists | {"names": ug.read_names(folder).nodes, "edges": edges, "ends": [edge[:2] for edge in edges]}


@pytest.fixture
def data() -> Any:
    return Data(**{name: torch.as_tensor(array) for name, array in GIVEN.items()})


def test_from_pyg(data: Any, tmp_path: Path) -> None:
    own = _seen(ug.from_pyg(data, tmp_path / "own"))
    assert (own["edges"], ug.read_names(tmp_path / "own")) == (EDGES, (None, None))
    data.edge_attr, data.y, data.x = WEIGHTS.tolist(), data.y[:, None], data.x.to_sparse()
    data.train_mask, data.test_mask, data.edge_type = TRAINED.tolist(), TESTED.tolist(), np.arange(6)
    del data.edge_weight
    other = _seen(ug.from_pyg(data, tmp_path / "other"))
    assert (other["edge_attr"], other["edge_type"]) == ([[edge[2]] for edge in EDGES], [2, 0, 3, 1, 4, 5])
    for one in (own, other):
        assert (one["x"], one["y"], one["split"]) == (X.tolist(), Y.tolist(), [TRAIN, NONE, TEST, NONE])
    assert sp.issparse(read_graph(tmp_path / "other").features)
    data.y = np.array([0.5, 1, 2, 3])
    assert task_of(read_graph(ug.from_pyg(data, tmp_path / "values")).labels) is Task.REGRESSION


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor|invariant):UserWarning")
@pytest.mark.parametrize("name", ["edge_index", "adj_t"])
def test_from_pyg_with_edges_as_a_matrix(name: str, data: Any, tmp_path: Path) -> None:
    """As PyG's layers take it: rows are targets. Values that are not 1 are weights."""
    once = torch.tensor(ENDS[::-1, :5].copy())
    matrix = torch.sparse_coo_tensor(once, torch.tensor(WEIGHTS[:5]), (4, 4)).coalesce()
    given = matrix if name == "adj_t" else matrix.to_sparse_csr()
    graph = read_graph(ug.from_pyg(Data(x=data.x, y=data.y, **{name: given}), tmp_path / "own", split=(1, 0, 0)))
    assert edges_of(graph) == [(*edge[:3], ()) for edge in EDGES[:5]]


@pytest.mark.parametrize("kind", [sp.csr_array, sp.coo_matrix, sp.csc_matrix])
def test_from_scipy(kind: Any, tmp_path: Path) -> None:
    """Entry (i, j) is the edge from i to j; a matrix of ones has no weights; features may be sparse."""
    matrix = kind(np.array([[0, 2.5, 0], [0, 0, 1], [0, 3, 0]]))
    masks: dict[str, Any] = {"train_mask": [True, False, False], "val_mask": [False, True, False]}
    graph = read_graph(ug.from_scipy(matrix, tmp_path / "own", x=sp.eye_array(3), y=[0, 1, 1], **masks))
    assert edges_of(graph) == [(0, 1, 2.5, ()), (2, 1, 3, ()), (1, 2, 1, ())]
    assert (graph.split.tolist(), sp.issparse(graph.features)) == ([TRAIN, VAL, NONE], True)
    assert read_graph(ug.from_scipy(matrix > 0, tmp_path / "plain", x=np.eye(3), y=[0, 1, 1])).weights is None


def _named_graph() -> Any:
    graph = nx.DiGraph()
    for name, color in (("b", "red"), ("a", "blue"), ("c", "red")):
        graph.add_node(name, x=[ord(name), 1.0], y=color, train_mask=name == "a", short=[1] * (1 + (name == "b")))
    graph.add_edge("b", "a", weight=2.0, length=5, kind=1)
    graph.add_edge("c", "a", length=6, kind=0)
    return graph


def test_from_networkx(tmp_path: Path) -> None:
    """In the order of graph.nodes. An undirected graph has each edge in both directions, a loop once."""
    arrays: dict[str, Any] = {"edge_attr": ("length", "kind"), "edge_arrays": ["kind"], "x": "x"}
    folder = ug.from_networkx(_named_graph(), tmp_path / "own", **arrays)
    found = _seen(folder)
    assert (found["edges"], found["kind"]) == ([(0, 1, 2, (5, 1)), (2, 1, 1, (6, 0))], [1, 0])
    assert (found["x"], found["y"], found["split"]) == ([[98, 1], [97, 1], [99, 1]], [1, 0, 1], [NONE, TRAIN, NONE])
    assert ug.read_names(folder) == (["b", "a", "c"], ["blue", "red"])
    club = nx.karate_club_graph()
    club.add_edge(3, 3, weight=2)
    folder = ug.from_networkx(club, tmp_path / "club", x=np.eye(34), y="club")
    assert len(read_graph(folder).indices) == 2 * club.number_of_edges() - 1
    assert ug.read_names(folder) == (None, ["Mr. Hi", "Officer"])


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    x = np.ones((2, 1 << 17))
    refused = refusal_without_space(lambda: ug.from_edges([[0], [1]], tmp_path / "own", x=x), 100_000)
    assert ("cannot be written: " in refused, "None" in refused) == (True, False)


def test_from_edges_of_arrays(tmp_path: Path) -> None:
    """As they are, also in another machine's byte order; names are numbered in the order of nodes=."""
    names = np.array(["zoe", "al", "kim", "bo"])
    foreign = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in ARRAYS.items()}
    for number, (ends, nodes, arrays) in enumerate((
        (ENDS, None, ARRAYS), (names[ENDS], names.tolist(), ARRAYS), (ENDS + 10, [10, 11, 12, 13], ARRAYS),
        (ENDS.astype(">i4"), None, foreign),
    )):  # fmt: skip
        folder = ug.from_edges(ends, tmp_path / str(number), nodes=nodes, **arrays)
        found = _seen(folder)
        assert [found[name] for name in ("edges", "x", "y", "names")] == [EDGES, X.tolist(), Y.tolist(), nodes]
        assert read_graph(folder).features.dtype.isnative


def test_a_graph_may_have_no_edges(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target,weight\n")
    for number, edges in enumerate(([[], []], np.zeros((2, 0), np.int32), tmp_path / "edges.csv")):
        for nodes in (None, ["a", "b", "c", "d"]):
            folder = ug.from_edges(edges, tmp_path / f"{number}{nodes}", x=X, y=Y, nodes=nodes)
            assert len(read_graph(folder).indices) == 0


@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support")
@pytest.mark.parametrize("form", [lambda x: x.requires_grad_(), lambda x: x.to_sparse(), lambda x: x.to_sparse_csc()])
def test_tensors_of_every_kind_become_arrays(form: Any, data: Any, tmp_path: Path) -> None:
    half = torch.from_numpy(X).bfloat16()
    given = {"edge_weight": data.edge_weight.requires_grad_(), "edge_attr": FEATURES, "y": data.y}
    found = _seen(ug.from_edges(data.edge_index, tmp_path / "own", x=form(half.clone()), **given))
    assert (found["edges"], found["x"]) == (EDGES, half.float().tolist())


@pytest.mark.parametrize(("convert", "given", "options", "words"), [
    (ug.from_edges, np.array([["a"], ["b"]]), {}, "the ends of edges are names: give nodes="),
    (ug.from_edges, "edges.txt", {}, "is no table"),
    (ug.from_edges, "no.csv", {}, "cannot be read"),
    (ug.from_edges, ENDS, {"nodes": [0, 1, 2, 9]}, "edge 1: source 3 is not among the nodes"),
    (ug.from_edges, ENDS, {"y": [0, None, 1, 0]}, "y is not of one type of numbers: give -1 or NaN"),
    (ug.from_edges, ENDS, {"x": [[1, 2], [3]]}, "x is no array: expected rows of one length"),
    (ug.from_edges, ENDS, {"x": np.full((4, 1), 2**24 + 1)}, "x of node 0 is 16777217 .* float32 .*node_arrays="),
    (ug.from_edges, ENDS, {"edge_weight": WEIGHTS[:5]}, r"edge_weight must have shape \(6,\), not \(5,\)"),
    (ug.from_edges, ENDS, {"edge_weight": np.arange(6) + 2**40}, "of edge 1 is 1099511627777, .* .*edge_arrays="),
    (ug.from_edges, ENDS, {"train_mask": [True]}, r"train_mask must have shape \(4,\)"),
    (ug.from_edges, ENDS, {"node_arrays": {"year": np.arange(5)}}, r"node\.year must have 4 rows"),
    (ug.from_edges, ENDS, {"node_arrays": {"../year": np.arange(4)}}, r"'\.\./year': expected a name of letters"),
    (ug.from_edges, ENDS, {"y": ["1,5", "2,5", "", ""]}, "y of node 0 is '1,5', as text: .* 1.5"),
    (ug.from_edges, ENDS, {"split": {"train": [0], "dev": [1]}}, "split has 'dev': expected the names train, valid"),
    (ug.from_edges, ENDS, {"split": {"train": [0, 4]}}, r"split\['train'\]\[1\] is 4; allowed are 0 to 3"),
    (ug.from_edges, ENDS, {"split": {"train": [0, 1], "test": [1]}}, "node 1 is in more than one of train, val, test"),
    (ug.from_edges, ENDS, {"split": (0.6, 0.6, 0.2)}, r"split=\(0\.6, 0\.6, 0\.2\): expected three shares"),
    (ug.from_edges, ENDS, {"split": (1, 0, 0), "train_mask": TRAINED}, "split= and train_mask are given"),
    (ug.from_pyg, HeteroData(), {}, r"data\.to_homogeneous\(\)"),
    (ug.from_pyg, Data(**GIVEN | {"train_mask": TRAINED[:, None].repeat(10, 1)}), {}, "train_mask has 10 splits"),
    (ug.from_pyg, Data(**GIVEN, edge_type=np.arange(5)), {}, r"edge_type must have shape \(6,\), not \(5,\)"),
    (ug.from_pyg, Data(**GIVEN | {"edge_index": None}), {}, "has neither edge_index nor adj_t"),
    (ug.from_scipy, sp.csr_array((2, 3)), {"x": X}, "expected as many rows as columns"),
    (ug.from_networkx, _named_graph(), {"edge_attr": ("speed",)}, "edge from 'b' to 'a' has no attribute 'speed'"),
    (ug.from_networkx, _named_graph(), {"x": "z"}, "node 'b' has no attribute 'z'; it has x, y, train_mask"),
    (ug.from_networkx, _named_graph(), {"x": "short"}, "the nodes' 'short' are not all of one length"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(convert: Any, given: Any, options: Any, words: str, tmp_path: Path) -> None:
    """In one line, with the way out where there is one, and nothing is left."""
    with pytest.raises(InputError, match=words) as refusal:
        convert(given, tmp_path / "own", **({"x": X, "y": Y} if convert is ug.from_edges else {}) | options)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_without_labels_is_written(tmp_path: Path, data: Any) -> None:
    del data.y
    for folder in (
        ug.from_edges(ENDS, tmp_path / "edges", x=X, val_mask=TRAINED),
        ug.from_scipy(sp.eye_array(4), tmp_path / "scipy", x=X),
        ug.from_networkx(nx.Graph([(0, 1), (2, 3)]), tmp_path / "networkx", x=X, y=None),
        ug.from_pyg(data, tmp_path / "pyg"),
    ):
        assert (_seen(folder)["y"], _seen(folder)["split"]) == ([-1] * 4, [NONE] * 4)


def test_a_folder_that_exists_is_refused_or_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is replaced if the user says so; a folder that holds more is not. ~ is the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = ug.from_edges(ENDS, "~/own", x=X, y=Y, nodes=[0, 1, 2, 3])
    assert ug.read_names("~/own").nodes == [0, 1, 2, 3]
    with pytest.raises(InputError, match=r"own: exists already, .* overwrite=True"):
        ug.from_edges(ENDS, folder, x=X + 1, y=Y, nodes=[0, 1, 2, 3])
    ug.from_edges(ENDS[:, :3], folder, x=X, overwrite=True)
    assert len(read_graph(folder).indices) == 3
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["edge_index.npy", "own", "x.npy"]
    with pytest.raises(InputError, match="no such folder"):
        ug.read_names(tmp_path / "none")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="own: holds more than a graph"):
        ug.from_edges(ENDS, folder, x=X, overwrite=True)


def test_a_script_converts_its_graph_in_each_run_on_all_ranks(tmp_path: Path) -> None:
    folders = on_every_rank(4, lambda _rank, _collectives: ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y))
    written = {path: path.stat().st_ino for path in folders[0].iterdir()}
    for overwrite in (False, True):
        ug.from_edges(ENDS, tmp_path / "own", x=X, y=Y, overwrite=overwrite)
    assert {path: path.stat().st_ino for path in folders[0].iterdir()} == written
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


EDGE_LINES = "source,target,weight,km\nzoe,al,1.5,3\nkim,al,2,4\nzoe,kim,1,5\n"
NODE_LINES = "node,age,size,y,train_mask\nzoe,30,1.5,0.5,true\nal,40,2.5,,false\nkim,50,3.5,2.5,false\n"


def _from_tables(folder: Path, edges: str = EDGE_LINES, nodes: Any = NODE_LINES, **given: Any) -> Path:
    (folder / "edges.csv").write_text(edges)
    if nodes is not None:
        (folder / "nodes.csv").write_text(nodes)
        given["nodes"] = folder / "nodes.csv"
    return ug.from_edges(folder / "edges.csv", folder / "own", **given)


def _from_parquet(folder: Path, edges: Any, nodes: Any, **given: Any) -> Path:
    parquet.write_table(edges, folder / "edges.parquet")
    parquet.write_table(nodes, folder / "nodes.parquet")
    given |= {"nodes": folder / "nodes.parquet", "overwrite": True}
    return ug.from_edges(folder / "edges.parquet", folder / "own", **given)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_from_edges_of_tables(tmp_path: Path, kind: str) -> None:
    folder = _from_tables(tmp_path, edge_attr=["km"])
    if kind == "parquet":
        edges, nodes = (csv.read_csv(tmp_path / f"{name}.csv") for name in ("edges", "nodes"))
        folder = _from_parquet(tmp_path, edges, nodes, edge_attr=["km"])
    found = _seen(folder)
    assert found["edges"] == [(0, 1, 1.5, (3,)), (2, 1, 2, (4,)), (0, 2, 1, (5,))]
    assert (found["x"], found["names"]) == ([[30, 1.5], [40, 2.5], [50, 3.5]], ["zoe", "al", "kim"])
    np.testing.assert_array_equal(found["y"], [0.5, np.nan, 2.5])
    assert found["split"] == [TRAIN, NONE, NONE]


WITHOUT_LABELS = "node,age,size\nzoe,30,1\nal,40,2\nkim,50,3\n"
IDS = "node,a,id\nzoe,0.5,16777217\nal,4,16777219\nkim,5,7\n"
MASKED = "node,a,y,train_mask,test_mask\nzoe,1,1,1,0\nal,2,0,0,1\nkim,3,1,0,0\n"
BEGIN = "source,target\n"


@pytest.mark.parametrize(("given", "wanted"), [
    ({"nodes": ",node,age\n0,zoe,30\n1,al,40\n2,kim,50\n"}, {"x": [[30], [40], [50]]}),  # pandas' index
    ({"edge_arrays": ["km"]}, {"km": [3, 4, 5]}),
    ({"nodes": IDS, "node_arrays": ["id"]}, {"id": [2**24 + 1, 2**24 + 3, 7], "x": [[0.5], [4], [5]]}),
    ({"nodes": WITHOUT_LABELS}, {"y": [-1] * 3}),
    ({"nodes": WITHOUT_LABELS, "x": ["age"]}, {"x": [[30], [40], [50]]}),
    ({"nodes": MASKED}, {"split": [TRAIN, TEST, NONE]}),
    ({"nodes": "node,a,y\nzoe,1,red\nal,1,\nkim,1,blue\n"}, {"y": [1, -1, 0]}),
    ({"edges": f"{BEGIN}0.0,01\n", "nodes": "node,a\n0,0.5\n1,1.5\n"}, {"ends": [(0, 1)]}),
    # names are text, unless all are whole numbers
    ({"edges": f"{BEGIN}02134,1\n", "nodes": "node,a\n02134,1\n1,1\n"}, {"ends": [(0, 1)], "names": ["02134", "1"]}),
    ({"edges": f"{BEGIN} 1,2\n", "nodes": "node,a\n1,1\n2,1\nx,1\n"}, {"ends": [(0, 1)], "names": ["1", "2", "x"]}),
    ({"edges": f"{BEGIN}1,2\n", "nodes": "node,a\n1,1\n2,1\n"}, {"ends": [(0, 1)], "names": [1, 2]}),
])  # fmt: skip
def test_tables_are_read(given: dict[str, Any], wanted: dict[str, Any], tmp_path: Path) -> None:
    found = _seen(_from_tables(tmp_path, **given))
    assert found == found | wanted


@pytest.mark.parametrize(("changes", "words"), [
    ({"edges": "from,to\na,b\n"}, r"edges\.csv: has no column source, target; it has from, to"),
    ({"edges": "source,target\nzoe,max\n"}, "edge 0: target max is not among the nodes"),
    ({"nodes": NODE_LINES.replace("50", "old")}, "column age holds text, not numbers: row 3 has 'old'"),
    ({"nodes": NODE_LINES.replace("2.5,false", "?,false")}, r"y of node 2 is '\?', beside numbers"),
    ({"nodes": NODE_LINES.replace("size", "age")}, r"nodes\.csv: has the column age twice"),
    ({"nodes": IDS}, r"id of node 0 is 16777217, which float32 rounds: .*node_arrays=\['id'\]"),
    ({"edge_attr": ["kg"]}, "has no column kg; it has source, target, weight, km"),
])  # fmt: skip
def test_faults_of_tables_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _from_tables(tmp_path, **changes)


def test_columns_of_parquet(tmp_path: Path) -> None:
    """A list stands for several columns; names of another type are text, large numbers are kept."""
    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    edges = pa.table({"source": days[:1], "target": days[1:]})
    columns: dict[str, Any] = {"node": pa.array(days), "y": [0, 1], "a": [5, 6], "vector": [[1.0, 2.0], [3.0, 4.0]]}
    folder = _from_parquet(tmp_path, edges, pa.table(columns))
    assert (_seen(folder)["x"], _seen(folder)["names"]) == ([[5, 1, 2], [6, 3, 4]], ["2020-01-01", "2020-01-02"])
    folder = _from_parquet(tmp_path, edges, pa.table(columns | {"y": pa.array(["red", None], pa.large_string())}))
    assert _seen(folder)["y"] == [0, -1]
    with pytest.raises(InputError, match=r"column vector of list<.*>: expected numbers, .*lists of one length"):
        _from_parquet(tmp_path, edges, pa.table(columns | {"vector": [[1.0, 2.0], [3.0]]}))
    for node, source in (("int64", "uint64"), ("uint64", "int64")):  # numpy compares and joins them as float64
        nodes = pa.table({"node": pa.array([2**53, 2**53 + 1, 7], node), "a": [1, 2, 3], "y": [0, 1, 0]})
        edges = pa.table({"source": pa.array([2**53 + 1], source), "target": pa.array([2**53], "uint64")})
        assert [edge[:2] for edge in _seen(_from_parquet(tmp_path, edges, nodes))["edges"]] == [(1, 0)]


@pytest.mark.parametrize(("y", "classes", "labels"), [
    (["1", "2", "K", "K", "1", "2"], ["1", "2", "K"], [0, 1, 2, 2, 0, 1]),
    (["red", float("nan"), "blue", None], ["blue", "red"], [1, -1, 0, -1]),
    ([True, False, True], None, [1, 0, 1]),
], ids=["grades", "list", "bool"])  # fmt: skip
def test_what_is_no_text_among_labels_is_unknown(y: Any, classes: Any, labels: list[int], tmp_path: Path) -> None:
    folder = ug.from_edges(np.zeros((2, 1), np.int64), tmp_path / "own", x=np.ones((len(y), 1)), y=y)
    assert ug.read_names(folder).classes == classes
    assert (read_graph(folder).labels.tolist(), task_of(read_graph(folder).labels)) == (labels, Task.CLASSES)


def test_the_pages_example_runs(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "graphs.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(example, found)  # noqa: S102  (the page is ours)
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", example)
    assert read_graph(found["folder"]).num_nodes == 3
